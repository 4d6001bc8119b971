"""Usual replies between hosts read from their bytes: the codec is the reference for each of them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.idl import LeasedBytes, idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import encode_struct
from foqs.wire.scan import scan_reply
from foqs.wire.usual_replies import items_done, items_leased, items_stored

SEQID = 7
READERS: dict[str, Callable[[bytes, int], Any]] = {
    "Enqueue": items_stored,
    "Dequeue": items_leased,
    "Ack": items_done,
    "ExtendLease": items_done,
}
i64s, texts = st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=3)
error = idl.RequestError(5, "not served", 100)
tenancies = st.sampled_from([(None, None), ("", ["a"]), ("acme", None), ("b", ["a", "bb"])])
items = st.builds(
    lambda ids, names, payload, tenancy, more: idl.Item(
        *ids, 1, *names, 3, payload, None, None, 1, 5, 6, 7, fairness_key=tenancy[0], throttle_keys=tenancy[1], **more
    ),
    st.tuples(i64s, i64s),
    st.tuples(st.sampled_from(["n", ""]), st.sampled_from(["t", "uu"])),
    st.binary(max_size=5),
    tenancies,
    st.just({}) | st.sampled_from([{"expires_at_ms": 9}, {"state": 1}, {"failure": idl.Failure()}]),
)
stored = st.lists(st.builds(idl.EnqueueOutcome, i64s) | st.just(idl.EnqueueOutcome(4, None, True)))
done = st.lists(st.sampled_from([idl.ItemOutcome(), idl.ItemOutcome(error)]))
all_done = st.integers(0, 20).map(lambda count: [idl.ItemOutcome()] * count)
leased = st.builds(idl.DequeueResponse, st.lists(items, max_size=6), st.sampled_from([None, None, None, [7]]))
responses = st.one_of(
    st.tuples(st.just("Enqueue"), stored.map(idl.EnqueueResponse)),
    st.tuples(st.just("Ack"), done.map(idl.AckResponse)),
    st.tuples(st.just("ExtendLease"), all_done.map(idl.ExtendLeaseResponse)),
    st.tuples(st.just("Dequeue"), leased),
)


def frame_of(name: str, response: Any) -> bytes:
    head = b"\x80\x01\0\x02" + len(name).to_bytes(4, "big") + name.encode() + SEQID.to_bytes(4, "big")
    return head + b"\x0c\0\0" + encode_struct(response) + b"\0"


def by_codec(name: str, frame: bytes) -> Any:
    return RemoteMethod(name).decode(frame, SEQID, lambda data, start: scan_reply(data, start, Limits()))


def only_items(response: Any) -> bytes:
    return encode_struct(idl.DequeueResponse(response.items))


def agrees(name: str, frame: bytes) -> bool:
    """Check that the reader returns what the codec does. Return False if it leaves the reply to the codec."""
    found = RemoteMethod(name, usual=READERS[name]).decode(frame, SEQID)
    codec = by_codec(name, frame)
    if type(found) is LeasedBytes:
        assert found.read().items and found.body == encode_struct(found.read()) == only_items(codec)
        return True
    shown = lambda outcomes: [(getattr(one, "id", None), one.error) for one in outcomes]  # noqa: E731
    if name != "Dequeue":
        assert shown(found.outcomes) == shown(codec.outcomes)
    return type(found) is not type(codec)


@given(responses)
def test_a_reply_reads_as_with_the_codec(one: tuple[str, Any]) -> None:
    agrees(one[0], frame_of(*one))


@given(responses, st.data())
def test_a_changed_reply_is_the_codecs_or_refused(one: tuple[str, Any], data: st.DataObject) -> None:
    frame = bytearray(frame_of(*one))
    start = len(one[0]) + 12
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(start, len(frame) - 1))] = data.draw(st.sampled_from([0, 1, 11, 12, 15, 255]))
    if (found := READERS[one[0]](bytes(frame), start)) is not None:
        codec = by_codec(one[0], bytes(frame))
        if type(found) is LeasedBytes:
            assert codec.items and found.body == only_items(codec)
        else:
            assert len(found.outcomes) == len(codec.outcomes)
            assert all(outcome.error is None for outcome in codec.outcomes)


def item(**more: Any) -> Any:
    made = idl.Item(5, 6, 1, "n", "t", 3, b"xyz", None, None, 1, 5, 6, 7)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("Enqueue", idl.EnqueueResponse([idl.EnqueueOutcome(3), idl.EnqueueOutcome(4)])),
        ("Ack", idl.AckResponse([idl.ItemOutcome()] * 100)),
        ("Dequeue", idl.DequeueResponse([item(), item(fairness_key="a"), item(throttle_keys=["b", "c"])])),
    ],
)
def test_a_usual_reply_is_read_without_the_codec(name: str, response: Any) -> None:
    frame = frame_of(name, response)
    assert agrees(name, frame)
    for cut in (*(frame[:size] for size in range(len(name) + 12, len(frame))), frame + b"\0"):
        assert READERS[name](cut, len(name) + 12) is None


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("Enqueue", idl.EnqueueResponse([idl.EnqueueOutcome(3, None, True)])),
        ("Ack", idl.AckResponse([idl.ItemOutcome(error)])),
        ("Dequeue", idl.DequeueResponse([])),
        ("Dequeue", idl.DequeueResponse([item(metadata=b"m")])),
        ("Dequeue", idl.DequeueResponse([item()], per_worker={"t": 1})),
    ],
)
def test_an_unusual_reply_is_left_to_the_codec(name: str, response: Any) -> None:
    assert not agrees(name, frame_of(name, response))
