"""Enums whose numbers the contract fixes, and which people read by name."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

_NUMBERS = frozenset("bcdeEfFgGnoxX%")


class NamedInt(IntEnum):
    """An IntEnum whose text is the name of the member, as `print` and f-strings show it; a format of numbers, such as
    `d`, shows the number. JSON and `int` have the number."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(int(self) if spec[-1:] in _NUMBERS else self.name, spec)


def known(kind: type[IntEnum], number: int) -> Any:
    """Return a member of `kind`, or the number itself if a newer host has added it."""
    return kind(number) if number in kind._value2member_map_ else number
