"""Acks in columns: the codec's structs are the reference."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.wire.protocol import Malformed, encode_struct
from foqs.wire.server_codec import RequestDecoder
from foqs.wire.usual_requests import ACK_BYTES, AckColumns, ids_and_leases
from tests.rpc.serving import decode, head, i32, message
from tests.support.examples import examples

i64s = st.integers(-(2**63), 2**63 - 1)
whole = st.builds(idl.AckItem, id=i64s, lease=i64s)
partial = st.builds(idl.AckItem, id=st.none() | i64s, lease=st.none() | i64s)
MORE = b"\x0a\0\3" + b"\0" * 8  # a field of a newer contract


@pytest.fixture(scope="module")
def decoder() -> RequestDecoder:
    return RequestDecoder(idl.Foqs, ["Ack", "AckAndDequeue"], Limits())


def by_each_way(decoder: RequestDecoder, frame: bytes) -> tuple[Any, Any]:
    """Return the request of `frame`, and what the codec alone makes of it."""
    called, _, start = head(decoder, frame)
    return decode(decoder, frame), decoder._long_way(called, frame, start)


def frame_of(elements: list[bytes]) -> bytes:
    empty = message("Ack", idl.AckRequest([], "ns"))
    head = b"\x0f\0\1\x0c"
    before, after = empty.split(head + i32(0))
    return before + head + i32(len(elements)) + b"".join(elements) + after


@given(acks=st.lists(whole, max_size=8))
def test_usual_acks_are_read_into_columns(decoder: RequestDecoder, acks: list[Any]) -> None:
    for name, sent, field in (
        ("Ack", idl.AckRequest(acks, "ns"), "items"),
        ("AckAndDequeue", idl.AckAndDequeueRequest("ns", acks, [idl.TopicCount("t", 1)]), "acks"),
    ):
        request, reference = by_each_way(decoder, message(name, sent))
        columns = getattr(request, field)
        assert type(columns) is AckColumns
        assert list(columns) == acks
        assert ids_and_leases(columns) == ids_and_leases(getattr(reference, field))
        assert request.ns == reference.ns == "ns"


@given(acks=st.lists(partial, max_size=8))
def test_unusual_acks_are_read_by_the_codec(decoder: RequestDecoder, acks: list[Any]) -> None:
    request, reference = by_each_way(decoder, message("Ack", idl.AckRequest(acks, "ns")))
    assert ids_and_leases(request.items) == ids_and_leases(reference.items) == ids_and_leases(acks)
    usual = all(ack.id is not None and ack.lease is not None for ack in acks)
    assert (type(request.items) is AckColumns) is usual


def test_fields_in_another_order_or_of_a_newer_contract_are_read(decoder: RequestDecoder) -> None:
    usual = encode_struct(idl.AckItem(3, 4))
    assert len(usual) == ACK_BYTES
    turned = usual[11:22] + usual[:11] + b"\0"
    for other in (turned, MORE + usual, usual[:-1] + MORE + b"\0", usual[:11] + b"\0", b"\0"):
        for elements in ([other], [usual, other], [other, usual], [other] * 50):
            request, reference = by_each_way(decoder, frame_of(elements))
            assert type(request.items) is list
            assert ids_and_leases(request.items) == ids_and_leases(reference.items)


@given(acks=st.lists(whole, min_size=1, max_size=3), data=st.data())
@settings(max_examples=examples(3))
def test_changed_elements_are_read_as_the_codec_reads_them(
    decoder: RequestDecoder, acks: list[Any], data: st.DataObject
) -> None:
    elements = bytearray(b"".join(encode_struct(ack) for ack in acks))
    at = data.draw(st.integers(0, len(elements) - 1))
    elements[at] = data.draw(st.sampled_from([0, 1, 2, 3, 8, 10, 11, 12, 255]))
    try:
        usual = len(AckColumns(bytes(elements))) == len(acks)
    except ValueError:
        usual = False
    in_a_value = 3 <= at % ACK_BYTES < 11 or 14 <= at % ACK_BYTES < 22
    same = bytes(elements) == b"".join(encode_struct(ack) for ack in acks)
    assert usual is (in_a_value or same)
    frame = frame_of([bytes(elements[n : n + ACK_BYTES]) for n in range(0, len(elements), ACK_BYTES)])
    called, _, start = head(decoder, frame)
    try:
        reference = decoder._long_way(called, frame, start)
    except (Malformed, Invalid) as refused:
        with pytest.raises(type(refused)):
            decode(decoder, frame)
        return
    assert ids_and_leases(decode(decoder, frame).items) == ids_and_leases(reference.items)
