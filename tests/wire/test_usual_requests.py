"""Usual requests read from their bytes: the codec is the reference for each of them."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.client import methods
from foqs.client.items import ItemSpec
from foqs.client.methods import ACK, DEQUEUE, ENQUEUE
from foqs.errors import PROTOCOL_VERSION, Invalid, OtherProtocol
from foqs.idl import idl
from foqs.wire.known_context import KnownContext
from foqs.wire.protocol import Malformed
from foqs.wire.server_codec import RequestDecoder
from foqs.wire.usual_requests import READERS, AckColumns, SpecColumns
from tests.rpc.serving import head, i32, message
from tests.support.examples import examples
from tests.wire.test_scan import ITEM, acks, blobs, contexts, enqueue_of, i32s, i64s, method_of, plain, specs, texts
from tests.wire.test_scan import requests as any_requests

LIMITS = Limits(request_items=8, context_bytes=30)
FRAME_HEAD_BYTES = 4
NS, PRIORITY, DELIVERY = b"\x0b\0\1" + i32(1) + b"n", b"\x08\0\5" + i32(7), b"\x08\0\x0a" + i32(1)
NAMED_ITEM = b"\x0b\0\1" + i32(1) + b"t" + b"\x0b\0\2" + i32(1) + b"x" + PRIORITY
NO_TEXT, NO_TIME = b"\x0b\0\1" + i32(0), b"\x0a\0\x06" + bytes(8)

whole_contexts = st.none() | st.builds(
    idl.RequestContext,
    token=st.none() | texts,
    request_id=st.none() | texts,
    traceparent=st.none() | texts,
    timeout_ms=st.none() | st.integers(-1, 700_000),
    hops=st.none() | st.integers(-1, 3),
    host_proof=st.none() | texts,
    principal=st.none() | texts,
    peer_version=st.none() | st.just(PROTOCOL_VERSION) | i32s,
    host_proof_next=st.none() | texts,
)


pairs = st.dictionaries(texts, texts, max_size=7)


@st.composite
def like_items(draw: st.DrawFn) -> list[Any]:
    """Items that differ in their payloads and priorities, and perhaps in more fields."""
    times = {name: draw(st.none() | i64s) for name in ("deliver_after_ms", "delay_ms", "lease_ms", "ttl_ms")}
    tenancy = {
        "fairness_key": draw(st.none() | texts),
        "throttle_keys": draw(st.none() | st.lists(texts, max_size=8)),
        "weight": draw(st.none() | i32s),
        "batch": draw(st.none() | i64s),
    }
    shared = {"topic": draw(texts), "delivery": draw(i32s), **times, **tenancy}
    bodies = draw(st.lists(st.tuples(blobs, i32s), min_size=1, max_size=8))
    items = [idl.ItemSpec(payload=payload, priority=priority, **shared) for payload, priority in bodies]
    if shared["fairness_key"] is not None and draw(st.booleans()):
        for item in items:
            item.fairness_key = draw(st.sampled_from(["", "a", "bb", "\u00e9"]))
    for name, values in (("metadata", blobs), ("headers", pairs), ("dedup_key", texts)):
        if draw(st.integers(0, 3)) == 0:
            for item in items:
                setattr(item, name, draw(values))
    return items


whole_acks = st.lists(st.builds(idl.AckItem, id=i64s, lease=i64s), max_size=8)
wants = st.lists(
    st.builds(idl.TopicCount, topic=texts, count=i32s)
    | st.builds(idl.TopicCount, topic=texts, count=i32s, holding=i32s, weight=st.none() | i32s),
    max_size=8,
)
times = st.none() | i64s
usual_requests = st.one_of(
    st.builds(idl.EnqueueRequest, ns=texts, items=like_items(), context=whole_contexts),
    st.builds(
        idl.DequeueRequest, ns=texts, wants=wants, lease_ms=times, wait_ms=times, max_bytes=times,
        worker=st.none() | texts, begins=st.none() | i32s, most=st.none() | i32s, context=whole_contexts,
    ),
    st.builds(idl.AckRequest, items=whole_acks, ns=st.none() | texts, context=whole_contexts),
    st.builds(
        idl.AckAndDequeueRequest, ns=texts, acks=whole_acks, wants=wants, lease_ms=times, wait_ms=times,
        max_bytes=times, worker=st.none() | texts, begins=st.none() | i32s, most=st.none() | i32s,
        context=whole_contexts,
    ),
)  # fmt: skip
unusual_requests = st.one_of(
    st.builds(idl.EnqueueRequest, ns=texts, items=st.lists(specs, max_size=10), context=contexts),
    st.builds(idl.AckRequest, items=st.none() | st.lists(acks, max_size=10), ns=texts, context=contexts),
    any_requests,
)


@pytest.fixture(scope="module")
def decoder() -> RequestDecoder:
    return RequestDecoder(idl.Foqs, idl.Foqs.thrift_services, LIMITS)


def outcome(decoder: RequestDecoder, frame: bytes, *, usual: bool) -> Any:
    """The request as comparable values, or the error's type and text; without `usual`, what the codec makes of it."""
    called, _, start = head(decoder, frame)
    try:
        return plain(decoder.request(called if usual else replace(called, usual=None), frame, start, KnownContext()))
    except (Malformed, Invalid, OtherProtocol) as error:
        return type(error), str(error)


def same_by_each_way(decoder: RequestDecoder, frame: bytes) -> None:
    assert outcome(decoder, frame, usual=True) == outcome(decoder, frame, usual=False)


def read(frame: bytes, decoder: RequestDecoder) -> Any:
    """The request by the reader of its method, which has set its context when the limits refuse that."""
    called, _, start = head(decoder, frame)
    found = READERS[called.name](frame, start, LIMITS.request_items, KnownContext())
    if found is None:
        return None
    request, at = found
    with suppress(Invalid, OtherProtocol):
        return request if KnownContext().read(request, frame, at, LIMITS) else None
    return request


@given(request=usual_requests)
@settings(max_examples=examples(4))
def test_a_usual_request_is_read_without_the_codec(decoder: RequestDecoder, request: Any) -> None:
    frame = message(method_of(request), request)
    made = read(frame, decoder)
    assert made is not None
    assert plain(made) == plain(request)
    assert isinstance(made, type(request))
    same_by_each_way(decoder, frame)


@given(request=unusual_requests)
@settings(max_examples=examples(3))
def test_any_request_is_read_as_the_codec_reads_it(decoder: RequestDecoder, request: Any) -> None:
    same_by_each_way(decoder, message(method_of(request), request))


@given(request=usual_requests, data=st.data())
@settings(max_examples=examples(6))
def test_a_changed_frame_gives_the_codecs_request_or_error(
    decoder: RequestDecoder, request: Any, data: st.DataObject
) -> None:
    frame = bytearray(message(method_of(request), request))
    start = head(decoder, bytes(frame))[2]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(start, len(frame) - 1))
        frame[at] = data.draw(st.sampled_from([0, 1, 2, 3, 5, 8, 10, 11, 12, 15, 127, 128, 255]))
    same_by_each_way(decoder, bytes(frame))


@given(request=usual_requests, more=st.binary(min_size=1, max_size=4))
@settings(max_examples=examples(0.6))
def test_a_cut_or_longer_frame_gives_the_codecs_error(decoder: RequestDecoder, request: Any, more: bytes) -> None:
    frame = message(method_of(request), request)
    start = head(decoder, frame)[2]
    for changed in (*(frame[:size] for size in range(start, len(frame))), frame + more):
        same_by_each_way(decoder, changed)


@given(request=usual_requests, others=st.lists(whole_contexts, min_size=1, max_size=3), data=st.data())
@settings(max_examples=examples(4))
def test_a_request_reads_the_same_behind_another(
    decoder: RequestDecoder, request: Any, others: list[Any], data: st.DataObject
) -> None:
    known = KnownContext()
    if (own := request.context) is not None and data.draw(st.booleans()):
        others.append(idl.RequestContext(**{**vars(own), "request_id": data.draw(st.none() | texts)}))
    for context in [*others, own, own]:
        request.context = context
        frame = bytearray(message(method_of(request), request))
        if context is not None and data.draw(st.booleans()):
            frame[-data.draw(st.integers(1, min(40, len(frame) - 20)))] ^= 1 << data.draw(st.integers(0, 7))
        called, _, start = head(decoder, bytes(frame))
        try:
            found: Any = plain(decoder.request(called, bytes(frame), start, known))
        except (Malformed, Invalid, OtherProtocol) as error:
            found = type(error), str(error)
        assert found == outcome(decoder, bytes(frame), usual=False)


@given(
    item=like_items().map(lambda items: items[0]), others=st.lists(st.tuples(blobs, i32s), max_size=3),
    data=st.data(),
)  # fmt: skip
@settings(max_examples=examples(4))
def test_an_enqueue_reads_the_same_behind_one_that_is_like_it(
    decoder: RequestDecoder, item: Any, others: list[Any], data: st.DataObject
) -> None:
    known, request = KnownContext(), idl.EnqueueRequest("n", [item])
    for item.payload, item.priority in [*others, (b"x", 1), (b"", 2)]:
        frame = bytearray(message("Enqueue", request))
        if data.draw(st.booleans()):
            frame[data.draw(st.integers(len(enqueue_of(b"")), len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        called, _, start = head(decoder, bytes(frame))
        try:
            found: Any = plain(decoder.request(called, bytes(frame), start, known))
        except (Malformed, Invalid, OtherProtocol) as error:
            found = type(error), str(error)
        assert found == outcome(decoder, bytes(frame), usual=False)


def test_an_enqueue_like_the_last_one_shares_its_other_fields(decoder: RequestDecoder) -> None:
    known = KnownContext()
    for at, payload in enumerate((b"a", b"bcd", b"")):
        item = idl.ItemSpec("t", payload, priority=at, ttl_ms=9, throttle_keys=["k"])
        frame = message("Enqueue", idl.EnqueueRequest("n", [item]))
        called, _, start = head(decoder, frame)
        (found,) = decoder.request(called, frame, start, known).items
        assert plain(found) == plain(item)
        assert known.spec is not None
        assert found.throttle_keys is known.spec["throttle_keys"]
        assert not known.spec["payload"]
    item.dedup_key = "key"
    frame = message("Enqueue", idl.EnqueueRequest("n", [item]))
    assert decoder.request(called, frame, start, known).items[0].dedup_key == "key"
    assert "dedup_key" not in (known.spec or {})


def test_a_context_is_checked_by_the_limits_of_its_time() -> None:
    decoder, known = RequestDecoder(idl.Foqs, ["Ack"], LIMITS), KnownContext()
    frame = message("Ack", idl.AckRequest([], "n", idl.RequestContext(request_id="long", timeout_ms=9)))
    called, _, start = head(decoder, frame)
    for _ in range(2):
        assert decoder.request(called, frame, start, known).context.request_id == "long"
    decoder.limits = replace(LIMITS, context_bytes=3)
    with pytest.raises(Invalid, match="request_id"):
        decoder.request(called, frame, start, known)


def test_a_repeated_request_is_checked_by_the_limits_of_its_time() -> None:
    decoder, known = RequestDecoder(idl.Foqs, ["Dequeue"], LIMITS), KnownContext()
    wants, context = [idl.TopicCount("a", 1), idl.TopicCount("b", 2)], idl.RequestContext(request_id="id")
    frames = [message("Dequeue", idl.DequeueRequest("n", wants, wait_ms=wait, context=context)) for wait in (5, 5, 6)]
    called, _, start = head(decoder, frames[0])
    for frame in [*frames, *frames]:
        assert plain(decoder.request(called, frame, start, known)) == outcome(decoder, frame, usual=False)
    first, second = (decoder.request(called, frames[0], start, known) for _ in range(2))
    assert first is not second
    assert first.wants is second.wants
    assert decoder.request(called, frames[2], start, known).wants is not first.wants
    decoder.limits = replace(LIMITS, request_items=1)
    for _ in range(2):
        with pytest.raises(Invalid, match="more than 1 elements"):
            decoder.request(called, frames[0], start, known)


def test_the_client_librarys_requests_are_usual(decoder: RequestDecoder) -> None:
    context = methods.context(methods.context_head("token"), "id", "trace", 30_000)
    tenant: Any = {"fairness_key": "acme", "throttle_keys": ("a", "b"), "weight": 3}
    for method, request in (
        (ENQUEUE, methods.enqueue_request("n", "t", b"x", 3)),
        (ENQUEUE, methods.enqueue_request("n", "t", b"x", 3, **tenant)),
        (ENQUEUE, idl.EnqueueRequest("n", [ItemSpec("t", b"x", **tenant), ItemSpec("t", b"yy", **tenant)])),
        (ENQUEUE, idl.EnqueueRequest("n", [ItemSpec("t", b"x"), ItemSpec("t", b"yy", priority=3)])),
        (DEQUEUE, methods.dequeue_request("n", {"t": 1}, 1_000, None, None)),
        (ACK, methods.ack_request("n", 1, 2)),
    ):
        made = read(method.encode(request, 1, context=context)[FRAME_HEAD_BYTES:], decoder)
        assert (made.ns, made.context.token, made.context.timeout_ms) == ("n", "token", 30_000)


def test_lists_of_like_elements_become_columns(decoder: RequestDecoder) -> None:
    items = [idl.ItemSpec("t", payload, priority=7) for payload in (b"", b"abc", b"d")]
    made = read(message("Enqueue", idl.EnqueueRequest("n", items)), decoder).items
    assert type(made) is SpecColumns
    assert (made.payloads, made.priorities, len(made)) == ([b"", b"abc", b"d"], [7, 7, 7], 3)
    assert plain(made[1]) == plain(items[1])
    made = read(message("Ack", idl.AckRequest([idl.AckItem(1, 2), idl.AckItem(3, 4)])), decoder).items
    assert type(made) is AckColumns
    assert (made.ids, made.leases) == ([1, 3], [2, 4])


@pytest.mark.parametrize(
    "items",
    [
        [idl.ItemSpec("t", b"x"), idl.ItemSpec("u", b"x")],
        [idl.ItemSpec("t", b"x"), idl.ItemSpec("t", b"x", delay_ms=1)],
        [idl.ItemSpec("t", b"x"), idl.ItemSpec("t", b"x", dedup_key="k")],
        [idl.ItemSpec("t", b"x", delivery=2), idl.ItemSpec("t", b"x")],
        [idl.ItemSpec("t", b"x", metadata=b"m"), idl.ItemSpec("t", b"x")],
        [idl.ItemSpec("t", b"x", headers={"a": "b"}), idl.ItemSpec("t", b"x", metadata=b"m", headers={"a": "b"})],
        [idl.ItemSpec("t", b"x", dedup_key="k"), idl.ItemSpec("t", b"x", fairness_key="k")],
        [idl.ItemSpec("t", b"x", fairness_key="a"), idl.ItemSpec("t", b"x")],
        [idl.ItemSpec("t", b"x", fairness_key="a"), idl.ItemSpec("t", b"x", fairness_key="b", weight=2)],
        [idl.ItemSpec("t", b"x"), idl.ItemSpec("t", b"x", fairness_key="a")],
        [idl.ItemSpec("t", b"x", throttle_keys=list("abcdefghi"))],
        [idl.ItemSpec("t", b"x", headers={str(number): "" for number in range(8)})],
        [idl.ItemSpec("t", b"x")] * 9,
        [idl.ItemSpec("t", None)],
        [],
    ],
)
def test_unusual_items_are_left_to_the_codec(decoder: RequestDecoder, items: list[Any]) -> None:
    frame = message("Enqueue", idl.EnqueueRequest("n", items))
    assert read(frame, decoder) is None
    same_by_each_way(decoder, frame)


@pytest.mark.parametrize("field", [b"\x08\0\x63" + i32(1), b"\x0a\0\x63" + bytes(8), b"\x0b\0\x63" + i32(0)])
def test_fields_of_a_newer_contract_are_left_to_the_codec(decoder: RequestDecoder, field: bytes) -> None:
    context = b"\x0c\0\x0f"
    assert read(enqueue_of(NS + ITEM + NAMED_ITEM + DELIVERY + b"\0" + context + b"\0"), decoder) is not None
    for fields in (
        NS + ITEM + NAMED_ITEM + field + DELIVERY + b"\0",
        NS + ITEM + NAMED_ITEM + DELIVERY + field + b"\0",
        NS + ITEM + NAMED_ITEM + DELIVERY + b"\0" + field,
        NS + ITEM + NAMED_ITEM + DELIVERY + b"\0" + context + field + b"\0",
    ):
        frame = enqueue_of(fields)
        assert read(frame, decoder) is None
        same_by_each_way(decoder, frame)
        assert outcome(decoder, frame, usual=True)["items"][0]["priority"] == 7


def test_a_topic_of_a_newer_contract_is_left_to_the_codec(decoder: RequestDecoder) -> None:
    """As a host without weights reads a topic with one."""
    want = idl.TopicCount("t", 1, 2, None, 3)
    frame = message("Dequeue", idl.DequeueRequest("n", [want, want], most=4))
    newer = frame.replace(b"\x08\0\5" + i32(3), b"\x08\0\x63" + i32(3))
    assert read(frame, decoder) is not None and read(newer, decoder) is None
    same_by_each_way(decoder, newer)
    found = outcome(decoder, newer, usual=True)
    assert found["wants"] == [plain(idl.TopicCount("t", 1, 2))] * 2 and found["most"] == 4


@pytest.mark.parametrize(
    "frame",
    [
        enqueue_of(NS + ITEM + NAMED_ITEM + DELIVERY + b"\0" + b"\x0c\0\x0f" + NO_TEXT * 20 + b"\0"),
        enqueue_of(NS + ITEM + NAMED_ITEM + NO_TIME * 20 + DELIVERY + b"\0"),
        message("Dequeue", idl.DequeueRequest("n", [idl.TopicCount("t", 1)]))[:-2]
        + (b"\x0a\0\3" + bytes(8)) * 20
        + b"\0\0",
    ],
)
def test_repeated_fields_are_left_to_the_codec(decoder: RequestDecoder, frame: bytes) -> None:
    """The codec reads them in half of the time, and has a bound for it."""
    assert read(frame, decoder) is None
    same_by_each_way(decoder, frame)
