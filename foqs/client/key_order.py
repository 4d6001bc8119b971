"""Items with order keys in one call: an item is sent only when each item before it with its key is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from foqs.errors import FoqsError, Invalid, Unavailable

OrderKey = tuple[Any, Any]
"""The topic of an item, and its order key."""


def key_of(spec: Any) -> OrderKey:
    return spec.topic, spec.order_key


def breaks(outcome: object) -> bool:
    """Return True if later items of the key have to wait for another enqueue of an item with this outcome. An item that
    is Invalid is refused each time, so it has no place in the order."""
    return isinstance(outcome, FoqsError) and not isinstance(outcome, Invalid)


def held() -> Unavailable:
    """Return the error of an item that is not sent."""
    return Unavailable("it is not sent, as an earlier item of its order_key is not stored: enqueue that item first")


class KeyOrder:
    """The order of the items of one request. `failed` has, by key, the first item that is not stored, and is not tried
    again. `waiting` has the first item that is tried again, since `begin`."""

    def __init__(self, specs: Iterable[Any]) -> None:
        self.keys = list(map(key_of, specs))
        self.failed: dict[OrderKey, int] = {}
        self.waiting: dict[OrderKey, int] = {}

    def begin(self) -> None:
        """Begin to ask for the items again."""
        self.waiting = {}

    def note(self, i: int, *, again: bool) -> None:
        """Note that item `i` is not stored, and whether it is tried again."""
        found = self.waiting if again else self.failed
        found[self.keys[i]] = min(i, found.get(self.keys[i], i))

    def is_behind(self, i: int, found: dict[OrderKey, int]) -> bool:
        """Return True if item `i` comes after the item of its key in `found`."""
        return found.get(self.keys[i], i) < i

    def share_a_key(self, asked: Sequence[int], parts: Iterable[Sequence[int]]) -> bool:
        """Return True if one of the items `asked` has the key of an item in `parts`."""
        keys = {self.keys[i] for i in asked}
        return any(self.keys[i] in keys for part in parts for i in part)
