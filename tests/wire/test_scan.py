"""The scan and the decoder, without sockets: what they accept, what they refuse, and the costs."""

import contextlib
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.wire.protocol import MIN_BYTES, Malformed
from foqs.wire.scan import MAX_DEPTH, scan
from foqs.wire.server_codec import RequestDecoder, UnknownCall
from foqs.wire.usual_requests import AckColumns, SpecColumns
from tests.rpc.serving import decode, enqueue_of, head, i32, message
from tests.support.examples import examples

LIMITS = Limits()
ITEM = b"\x0f\0\2\x0c" + i32(1)  # the field `items`, one struct follows
START = len(enqueue_of(b"")) - 5

i64s = st.integers(-(2**63), 2**63 - 1)
i32s = st.integers(-(2**31), 2**31 - 1)
texts = st.text(max_size=20)
printable = texts.filter(str.isprintable)
blobs = st.binary(max_size=40)


def struct_of(struct: Any, **values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`struct` with any of these fields left out."""
    return st.builds(struct, **{name: st.none() | value for name, value in values.items()})


contexts = struct_of(
    idl.RequestContext, token=texts, request_id=printable, traceparent=texts, timeout_ms=st.integers(1, 600_000)
)
specs = struct_of(
    idl.ItemSpec,
    topic=texts,
    payload=blobs,
    metadata=blobs,
    headers=st.dictionaries(texts, texts, max_size=4),
    priority=i32s,
    deliver_after_ms=i64s,
    ttl_ms=i64s,
    delivery=st.integers(0, 9),
)

nacks = struct_of(idl.NackItem, id=i64s, lease=i64s, delay_ms=i64s, metadata=blobs, release=st.booleans(), reason=texts)
acks = st.builds(idl.AckItem, id=i64s, lease=i64s) | struct_of(idl.AckItem, id=i64s, lease=i64s)
requests = st.one_of(
    struct_of(idl.EnqueueRequest, ns=texts, items=st.lists(specs, max_size=6), context=contexts),
    struct_of(
        idl.DequeueRequest,
        ns=texts,
        wants=st.lists(struct_of(idl.TopicCount, topic=texts, count=i32s, holding=i32s, weight=i32s), max_size=4),
        wait_ms=i64s,
        context=contexts,
    ),
    struct_of(idl.AckRequest, items=st.lists(acks, max_size=6), ns=texts, context=contexts),
    struct_of(idl.NackRequest, items=st.lists(nacks, max_size=6), ns=texts),
    struct_of(idl.DeleteItemsRequest, ids=st.lists(i64s, max_size=20), context=contexts),
    struct_of(idl.ListItemsRequest, ns=texts, topic=texts, state=i32s, limit=i32s, cursor=texts),
    struct_of(idl.GetServerInfoRequest, context=contexts),
)


def method_of(request: Any) -> str:
    return str(type(request).__name__).removesuffix("Request")


def plain(value: Any) -> Any:
    """A struct as comparable values, whatever class it is of."""
    if hasattr(value, "thrift_spec"):
        return {spec[1]: plain(getattr(value, spec[1])) for spec in value.thrift_spec.values()}
    if isinstance(value, list | AckColumns | SpecColumns):
        return [plain(each) for each in value]
    return value


@pytest.fixture(scope="module")
def decoder() -> RequestDecoder:
    return RequestDecoder(idl.Foqs, idl.Foqs.thrift_services, LIMITS)


@given(request=requests)
@settings(max_examples=examples(3))
def test_all_that_can_be_encoded_is_decoded_either_way(decoder: RequestDecoder, request: Any) -> None:
    frame = message(method_of(request), request)
    called, _, start = head(decoder, frame)
    scan(frame, start, LIMITS)
    # An unset field with a default arrives as that default.
    expected = {
        name: value if value is not None else getattr(called.request, name) for name, value in plain(request).items()
    }
    for item in expected.get("items") or ():
        for name in ("priority", "delivery"):
            if name in item and item[name] is None:
                item[name] = getattr(idl.ItemSpec(), name)
    assert plain(decode(decoder, frame)) == expected
    assert plain(decoder._long_way(called, frame, start)) == expected


@given(request=requests, more=st.binary(min_size=1, max_size=12))
def test_every_truncation_and_every_surplus_is_malformed(decoder: RequestDecoder, request: Any, more: bytes) -> None:
    frame = message(method_of(request), request)
    for size in range(len(frame)):
        with pytest.raises((Malformed, UnknownCall)) as raised:
            decode(decoder, frame[:size])
        assert raised.type is Malformed
    with pytest.raises(Malformed):
        decode(decoder, frame + more)
    assert decode(decoder, frame) is not None


@given(request=requests, data=st.data())
@settings(max_examples=examples(3))
def test_a_changed_frame_is_decoded_or_refused(decoder: RequestDecoder, request: Any, data: st.DataObject) -> None:
    frame = bytearray(message(method_of(request), request))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    began = time.process_time()
    with contextlib.suppress(Malformed, UnknownCall, Invalid):
        decode(decoder, bytes(frame))
    assert time.process_time() - began < 1


@given(content=st.binary(max_size=200))
@settings(max_examples=examples(5))
def test_what_the_scan_lets_through_the_codec_reads_to_the_end(decoder: RequestDecoder, content: bytes) -> None:
    frame = enqueue_of(content)
    try:
        scan(frame, START, LIMITS)
    except (Malformed, Invalid):
        return
    assert decode(decoder, frame) is not None


NESTED = {
    "unknown struct": b"\x0c\0\x63\x0b\0\1" + i32(2) + b"ab\0",
    "unknown list of lists": b"\x0f\0\x63\x0f" + i32(2) + (b"\x08" + i32(1) + i32(7)) * 2,
    "unknown map of sets": b"\x0d\0\x63\x0b\x0e" + i32(1) + i32(1) + b"k\x02" + i32(3) + b"\1\1\1",
    "unknown map of nothing": b"\x0d\0\x63\0\0" + i32(0),
    "unknown list of nothing": b"\x0f\0\x63\0" + i32(0),
    "unknown scalars": b"\2\0\x63\1\3\0\x64\1\6\0\x65\1\1\4\0\x66" + b"\0" * 8,
}


@pytest.mark.parametrize("name", NESTED)
def test_fields_of_a_newer_contract_are_stepped_over(decoder: RequestDecoder, name: str) -> None:
    unknown = NESTED[name]
    priority = b"\x08\0\5" + i32(77)
    for fields in (
        unknown + ITEM + unknown + priority + unknown + b"\0",
        ITEM + unknown + priority + unknown + b"\0" + unknown,
        ITEM + priority + b"\0" + unknown,
    ):
        assert decode(decoder, enqueue_of(fields)).items[0].priority == 77


def test_a_mistyped_field_reads_as_its_default(decoder: RequestDecoder) -> None:
    for mistyped in (
        b"\x0a\0\5" + b"\1" * 8,
        b"\x0f\0\5\x0c" + i32(2) + b"\0\0",
        b"\x0b\0\5" + i32(1) + b"x",
    ):
        assert decode(decoder, enqueue_of(ITEM + mistyped + b"\0")).items[0].priority == 0
    assert decode(decoder, enqueue_of(b"\x08\0\1" + i32(5))).ns is None
    assert decode(decoder, enqueue_of(b"\x0f\0\2\x08" + i32(2) + i32(5) * 2)).items == []
    assert decode(decoder, enqueue_of(ITEM + b"\x0b\0\1" + i32(1) + b"\xff\0")).items[0].topic == b"\xff"


NO_TYPES = [code for code in range(1, 256) if code not in MIN_BYTES]
ABSURD = {
    "ten million structs": b"\x0f\0\2\x0c" + i32(10_000_000),
    "two thousand million structs": b"\x0f\0\2\x0c" + i32(2**31 - 1),
    "minus one structs": b"\x0f\0\2\x0c" + i32(-1),
    "unknown list of minus one": b"\x0f\0\x63\x0c" + i32(-1),
    "ten million strings in an unknown list": b"\x0f\0\x63\x0b" + i32(10_000_000),
    "ten million headers": ITEM + b"\x0d\0\4\x0b\x0b" + i32(10_000_000) + b"\0",
    "a string longer than the frame": b"\x0b\0\1" + i32(2**31 - 1),
    "a string of minus one": b"\x0b\0\1" + i32(-1),
    "a payload longer than the frame": ITEM + b"\x0b\0\2" + i32(2**31 - 1) + b"\0",
    "a payload of minus one": ITEM + b"\x0b\0\2" + i32(-1) + b"\0",
    "an unknown string of minus one": ITEM + b"\x0b\0\x63" + i32(-1) + b"\0",
    "nested beyond measure": b"\x0c\0\x63" * 100_000,
    "nested too deeply": b"\x0c\0\x63" * (MAX_DEPTH + 1) + b"\0" * (MAX_DEPTH + 1),
    "lists nested too deeply": b"\x0f\0\x63" + (b"\x0f" + i32(1)) * 20 + b"\2" + i32(0),
    **{f"unknown list of type {code}": b"\x0f\0\x63" + bytes((code,)) + i32(2**31 - 1) for code in NO_TYPES[:20]},
    **{f"items of type {code}": b"\x0f\0\2" + bytes((code,)) + i32(2**31 - 1) for code in NO_TYPES},
    "headers of no type": ITEM + b"\x0d\0\4\1\1" + i32(2**31 - 1) + b"\0",
    "a list of no type in an item": ITEM + b"\x0f\0\x63\1" + i32(2**31 - 1) + b"\0",
}


def test_absurd_sizes_are_malformed_at_once(decoder: RequestDecoder) -> None:
    began = time.process_time()
    for name, fields in ABSURD.items():
        with pytest.raises(Malformed):
            decode(decoder, enqueue_of(fields))
            pytest.fail(name)
    assert time.process_time() - began < 2


MB = 1_000_000
COSTLY = {
    "empty structs": b"\x0f\0\2\x0c" + i32(2 * MB) + b"\0" * 2 * MB,
    "unknown empty structs": b"\x0f\0\x63\x0c" + i32(2 * MB) + b"\0" * 2 * MB,
    "empty structs again and again": (b"\x0f\0\2\x0c" + i32(10_000) + b"\0" * 10_000) * 200,
    "unknown lists of nothing": (b"\x0f\0\x63\x0f" + i32(10_000) + (b"\2" + i32(0)) * 10_000) * 40,
    "one field again and again": ITEM + b"\2\0\x63\1" * (MB // 2) + b"\0",
    "the request's fields again and again": (b"\x08\0\x63" + i32(1)) * (MB // 4),
    "items full of headers": b"\x0f\0\2\x0c"
    + i32(1000)
    + (b"\x0d\0\4\x0b\x0b" + i32(180) + b"".join(i32(3) + b"%03d" % n + i32(0) for n in range(180)) + b"\0") * 1000,
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_frame_costs_more_than_its_share(decoder: RequestDecoder, name: str) -> None:
    frame = enqueue_of(COSTLY[name])
    began = time.process_time()
    tracemalloc.start()
    try:
        decode(decoder, frame)
    except Invalid:
        pass
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 30 * MB + len(frame)
    assert time.process_time() - began < 5  # with tracemalloc, which makes it several times slower


def test_the_limits_themselves_fit(decoder: RequestDecoder) -> None:
    headers = {f"header-{n}": "v" for n in range(10)}
    request = idl.EnqueueRequest("n", [idl.ItemSpec("t", b"p" * 300, headers=headers)] * LIMITS.request_items)
    assert len(decode(decoder, message("Enqueue", request)).items) == LIMITS.request_items
    request = idl.DeleteItemsRequest(list(range(LIMITS.request_items)))
    assert decode(decoder, message("DeleteItems", request)).ids == request.ids
    one_too_many = idl.DeleteItemsRequest(list(range(LIMITS.request_items + 1)))
    with pytest.raises(Invalid):
        decode(decoder, message("DeleteItems", one_too_many))


def test_nothing_of_an_earlier_frame_is_seen(decoder: RequestDecoder) -> None:
    secret = message("Enqueue", idl.EnqueueRequest("n", [idl.ItemSpec("t", b"SECRET" * 20_000)] * 3))
    for size in (10, 100, 5_000, 70_000, 600_000):
        decode(decoder, secret)
        with pytest.raises(Malformed):
            decode(decoder, enqueue_of(ITEM + b"\x0b\0\2" + i32(size) + b"\0"))
        assert decode(decoder, enqueue_of(ITEM + b"\0")).items[0].payload is None
