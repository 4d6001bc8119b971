"""Payloads as text: all letters stay, and no payload keeps the loop from other requests."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.console.payload_text import MOST_BYTES, PayloadText, kind_of, payload_text

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
LARGE = {
    "deep": b"[" * 40 + b"1," * 5_000 + b"1" + b"]" * 40,
    "objects": b"[" + b"{}," * 21_800 + b"{}]",
    "escapes": b"[" + b'"\\u0001",' * 7_000 + b"1]",
}


def shown(data: bytes, kind: str) -> PayloadText:
    return asyncio.run(payload_text(data, kind))


@given(_JSON)
def test_json_with_lines_is_the_same_json(value: Any) -> None:
    found = shown(json.dumps(value).encode(), "json")
    assert (found.kind, found.notes) == ("json", ())
    assert json.loads(found.text) == value


@pytest.mark.parametrize("text", ["1e999999", "9" * 60_000, '{"a":1,"a":2}', '"\\ud800"', '{"\\udfff":"\\""}'])
def test_json_that_python_does_not_read_keeps_its_letters(text: str) -> None:
    found = shown(f"[{text}]".encode(), "json")
    assert found.kind == "json"
    assert "".join(found.text.split()) == f"[{text}]"


@given(st.binary(max_size=300))
def test_each_payload_has_a_text_of_each_kind(data: bytes) -> None:
    for kind in ("json", "text", "hex", kind_of(data)):
        shown(data, kind).text.encode()


@pytest.mark.parametrize(
    ("name", "kind"), [(name, "json") for name in LARGE] + [("objects", "text"), ("objects", "hex")]
)
def test_other_requests_have_a_turn_while_a_payload_is_drawn(name: str, kind: str) -> None:
    async def work() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(other())
        found = await payload_text(LARGE[name], kind)
        waiting.cancel()
        assert found.kind == kind
        return turns

    assert asyncio.run(work()) >= 8


def test_long_json_is_shown_as_text() -> None:
    found = shown(b"[" + b"1," * MOST_BYTES + b"1]", "json")
    assert (found.kind, len(found.text)) == ("text", MOST_BYTES)
    assert found.notes[1] == "Shown as text: a page shows JSON of up to 64 KiB."


def test_deep_json_is_shown_as_text() -> None:
    deep = b"[" * 32 + b"1," * 32_000 + b"1" + b"]" * 32
    assert shown(deep, "json") == PayloadText("text", deep.decode(), ("Shown as text: the JSON is nested too deeply.",))
