"""Messages arrive whole, whatever the parts they arrive in, and a wrong one is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.hooks.frames import FrameError, FrameReader, framed, text_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_messages_arrive_whole_in_any_parts(messages: list[Any], sizes: list[int]) -> None:
    sent = b"".join(framed(text_of(message)) for message in messages)
    reader, received, number = FrameReader(1 << 20), [], 0
    while sent:
        size = sizes[number % len(sizes)]
        received += list(reader.feed(sent[:size]))
        sent, number = sent[size:], number + 1
    assert received == messages


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\x65", b"\0\0\0\1{", b"\0\0\0\2\xff\xff", b"\0\0\0\0"])
def test_a_wrong_message_is_refused(sent: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader(100).feed(sent))


def test_deep_json_is_refused() -> None:
    with pytest.raises(FrameError, match="a message that is not JSON"):
        list(FrameReader(1 << 20).feed(framed("[" * 100_000)))
