"""Reading a settings value: `what` it is called and the fields of later versions are in its errors."""

from __future__ import annotations

from typing import Annotated

import pytest

from foqs.bounds import NAME_BYTES
from foqs.errors import Invalid
from foqs.policies.entries import Entry, all_good_names, checked, name_error, read


class Box(Entry):
    name: Annotated[str, checked(lambda name: None if name.isupper() else "it is in lower case")] = "A"
    count: int = 0


def errors(text: str) -> list[str]:
    with pytest.raises(Invalid) as raised:
        read(Box, text, "a box", {"lid"})
    return raised.value.message.split("\n")


def test_a_value_is_read() -> None:
    box = read(Box, '{"count": 3}', "a box", {"lid"})
    assert (box, box.model_fields_set) == (Box(count=3), {"count"})


def test_every_error_is_reported() -> None:
    assert errors('{"name": "a", "count": "x", "lid": 1, "other": 2}') == [
        "lid: this version of foqs does not have it",
        "name: it is in lower case",
        'count: it must be a whole number, not "x"',
        'there is no field "other"',
    ]
    assert errors("[]") == ["a box is a JSON object, not []"]
    assert errors('{"count": 1, "count": 1}') == ['not JSON: "count" is listed more than once in an object']


_LONGEST = "a" * NAME_BYTES


@pytest.mark.parametrize("name", ["a", _LONGEST, _LONGEST + "a", "a\nb", "\x7f", "\ud800", "ä", "\u0085"])
def test_names_that_are_good_together_are_good(name: str) -> None:
    assert all_good_names(["b", name, ""], NAME_BYTES) == (name.isascii() and name_error(name) is None)
