"""Replies read from their bytes are those that the codec reads; the codec reads all unusual ones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import methods
from foqs.client.items import Item
from foqs.client.methods import dequeue_response, enqueue_response, items_response
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import Malformed
from tests.client.peer import encode_reply, failed

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
FIELDS = [name.removeprefix("_") for name in Item.__slots__]
ITEMS = st.builds(
    idl.Item, id=I64, lease=I64, attempt=I32, ns=NAMES, topic=NAMES, priority=I32, payload=st.binary(max_size=300),
    delivery=I32, deliver_after_ms=I64, enqueued_at_ms=I64, lease_expires_at_ms=I64, fairness_key=st.none() | NAMES,
    throttle_keys=st.none() | st.lists(NAMES, max_size=8),
)  # fmt: skip
STORED = st.builds(lambda id: idl.EnqueueResponse([idl.EnqueueOutcome(id)]), I64)
DONE = st.builds(lambda: idl.AckResponse([idl.ItemOutcome()]))
LEASED = st.builds(lambda items: idl.DequeueResponse(items=items), st.lists(ITEMS, max_size=1))
ITEM = idl.Item(1, 2, 3, "n", "t", 0, b"x", delivery=1, deliver_after_ms=0, enqueued_at_ms=0, lease_expires_at_ms=0)
USUAL = {methods.ENQUEUE: (STORED, enqueue_response), methods.DEQUEUE: (LEASED, dequeue_response)}
USUAL |= dict.fromkeys((methods.ACK, methods.NACK, methods.EXTEND), (DONE, items_response))
CODEC = {method: RemoteMethod(method.name, Item) for method in USUAL}
NUMBER = 7


def reply(method: RemoteMethod, response: Any) -> bytes:
    return encode_reply(method.name, response, NUMBER)[4:]


def start(method: RemoteMethod) -> int:
    return 12 + len(method.name)


def read(method: RemoteMethod, frame: bytes) -> Any:
    """What callers read of the response in `frame`, or the kind of the error."""
    try:
        response = method.decode(frame, NUMBER)
    except (FoqsError, Malformed) as error:
        return type(error)
    if method.name == "Dequeue":
        items = response.items and [[getattr(item, name) for name in FIELDS] for item in response.items]
        return items or [], response.doubtful, response.news_version, response.retry_after_ms, response.reason
    fields = ("id", "error", "duplicate") if method.name == "Enqueue" else ("error",)
    return [[repr(getattr(outcome, name)) for name in fields] for outcome in response.outcomes or ()]


@pytest.mark.parametrize("method", USUAL, ids=repr)
@given(st.data())
def test_a_usual_reply_reads_as_with_the_codec(method: RemoteMethod, data: st.DataObject) -> None:
    responses, direct = USUAL[method]
    frame = reply(method, data.draw(responses))
    assert direct(frame, start(method)) is not None
    assert read(method, frame) == read(CODEC[method], frame)


@pytest.mark.parametrize("method", USUAL, ids=repr)
@given(st.data())
def test_a_damaged_reply_reads_as_with_the_codec(method: RemoteMethod, data: st.DataObject) -> None:
    frame = bytearray(reply(method, data.draw(USUAL[method][0])))
    for at in data.draw(st.lists(st.integers(start(method), len(frame) - 1), max_size=3)):
        frame[at] = data.draw(st.integers(0, 15))
    damaged = bytes(frame[: data.draw(st.integers(start(method), len(frame)))])
    direct = USUAL[method][1](damaged, start(method))
    assert direct is None or read(method, damaged) == read(CODEC[method], damaged)


@pytest.mark.parametrize(
    ("method", "response"),
    [
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(1, duplicate=True)])),
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(error=failed(1))])),
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(1), idl.EnqueueOutcome(2)])),
        (methods.ACK, idl.AckResponse([idl.ItemOutcome(failed(2))])),
        (methods.ACK, idl.AckResponse([])),
        (methods.DEQUEUE, idl.DequeueResponse([ITEM, ITEM])),
        (methods.DEQUEUE, idl.DequeueResponse([], doubtful=[1])),
        (methods.DEQUEUE, idl.DequeueResponse([], news_version=1)),
        (methods.DEQUEUE, idl.DequeueResponse([], reason="paused")),
        (methods.DEQUEUE, idl.DequeueResponse([], retry_after_ms=5)),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", metadata=b"m")])),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", throttle_keys=list("abcdefghi"))])),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", expires_at_ms=1)])),
    ],
)
def test_an_unusual_reply_is_left_to_the_codec(method: RemoteMethod, response: Any) -> None:
    frame = reply(method, response)
    assert USUAL[method][1](frame, start(method)) is None
    assert read(method, frame) == read(CODEC[method], frame)
