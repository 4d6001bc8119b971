"""Requests and replies of one method, as clients and calling hosts encode and decode them."""

import ast
import subprocess
import sys
from struct import pack

import pytest
from thriftpy2.thrift import TApplicationException

from foqs.bounds import Limits
from foqs.client.items import Item
from foqs.errors import Code, Invalid, NotFound, NotSent, OutcomeUnknown, Overloaded, RequestTooLarge
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import (
    CALL,
    EXCEPTION,
    STRING,
    GoAway,
    Malformed,
    Unencodable,
    encode_struct,
    field_head,
    message_head,
    pack_i32,
)
from foqs.wire.server_codec import ReplyEncoder, RequestDecoder
from tests.rpc.serving import decode, head

GET_ITEM = RemoteMethod("GetItem", Item)
DECODER = RequestDecoder(idl.Foqs, idl.Foqs.thrift_services, Limits())
ENCODER = ReplyEncoder(1 << 20)
SEQID = 7
SERVED = DECODER.methods[message_head(CALL, b"GetItem")]


def exception(kind: int, message: str | bytes = "why", *, name: bytes = b"GetItem", seqid: int = SEQID) -> bytes:
    given = message if isinstance(message, bytes) else message.encode()
    text = field_head(STRING, 1) + pack(">i", len(given)) + given
    return message_head(EXCEPTION, name) + pack_i32(seqid) + text + field_head(8, 2) + pack(">i", kind) + b"\0"


def test_the_server_reads_the_request() -> None:
    frame = GET_ITEM.encode(idl.GetItemRequest(id=5), SEQID)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    called, seqid, _ = head(DECODER, frame[4:])
    assert (called.name, seqid, decode(DECODER, frame[4:]).id) == ("GetItem", pack_i32(SEQID), 5)


@pytest.mark.parametrize("item_class", [Item, None])
def test_items_are_of_the_class_that_was_asked_for(item_class: type | None) -> None:
    reply = ENCODER.success(SERVED, pack_i32(SEQID), idl.GetItemResponse(idl.Item(id=5, topic="t"), 1))[4:]
    response = RemoteMethod("GetItem", item_class).decode(reply, SEQID)
    assert (response.item.id, response.item.topic, response.state) == (5, "t", 1)
    assert isinstance(response.item, item_class or idl.Item)


def test_a_request_above_the_frame_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match=r"^a request of 35 bytes; a frame holds 20$"):
        GET_ITEM.encode(idl.GetItemRequest(id=1), SEQID, 20)


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(Unencodable, match=r"^id is of type str: "):
        encode_struct(idl.GetItemRequest(id="one"))


def test_the_declared_error_keeps_code_text_and_hint() -> None:
    reply = ENCODER.error(SERVED, pack_i32(SEQID), Overloaded("full", 50), None)[4:]
    with pytest.raises(Overloaded, match=r"^full$") as raised:
        GET_ITEM.decode(reply, SEQID)
    assert (raised.value.code, raised.value.retry_after_ms) == (Code.OVERLOADED, 50)


def test_a_long_error_text_is_cut() -> None:
    with pytest.raises(NotFound) as raised:
        GET_ITEM.decode(ENCODER.error(SERVED, pack_i32(SEQID), NotFound("x" * 5000), None)[4:], SEQID)
    assert raised.value.message == "x" * 1000


@pytest.mark.parametrize("refusal", [1, 2, 3, 7])
def test_an_error_before_the_handler_is_a_refusal(refusal: int) -> None:
    with pytest.raises(Invalid, match=r"^the server refused the call: why$"):
        GET_ITEM.decode(exception(refusal), SEQID)


def test_an_error_of_the_handler_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match=r"^the server failed: why$"):
        GET_ITEM.decode(exception(TApplicationException.INTERNAL_ERROR), SEQID)


@pytest.mark.parametrize("message", [b"\xff", b""])
def test_an_error_without_readable_text_is_typed(message: bytes) -> None:
    with pytest.raises(Invalid, match=r"^the server refused the call: type 1$"):
        GET_ITEM.decode(exception(1, message), SEQID)


def test_goaway_is_a_request_not_sent() -> None:
    frame = ENCODER.goaway()
    assert frame[4:].startswith(b"\x80\x01\x00\x03\x00\x00\x00\x07Goodbye\x00\x00\x00\x00")
    with pytest.raises(GoAway) as raised:
        GET_ITEM.decode(frame[4:], SEQID)
    assert isinstance(raised.value, NotSent)


GOOD = ENCODER.success(SERVED, pack_i32(SEQID), idl.GetItemResponse(idl.Item(id=5), 1))[4:]


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "no whole message head"),
        (GOOD[:17], "no whole message head"),
        (GOOD[:-9], "cannot be read"),
        (GOOD[:19] + b"\0", "holds nothing"),
        (b"\x80\x01\x00\x01" + GOOD[4:], "not a reply of the strict binary protocol"),
        (exception(1, seqid=8), "number 8 instead of GetItem number 7"),
        (exception(1, name=b"Other"), "a reply to 'Other'"),
    ],
)
def test_a_malformed_reply_is_refused(frame: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        GET_ITEM.decode(frame, SEQID)


def test_the_check_of_a_reply_comes_before_the_codec() -> None:
    def check(frame: bytes, start: int) -> None:
        raise Malformed(f"checked at {start} of {len(frame)}")

    with pytest.raises(Malformed, match=rf"^checked at 19 of {len(GOOD)}$"):
        GET_ITEM.decode(GOOD, SEQID, check)


@pytest.mark.process
def test_the_client_loads_no_part_of_a_host() -> None:
    code = "import sys, foqs.client; print([name for name in sys.modules if name.startswith(('foqs.', 'asyncio'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ast.literal_eval(done.stdout))
    assert "foqs.wire.client_codec" in loaded
    assert not loaded & {"asyncio", "foqs.rpc", "foqs.wire.scan", "foqs.wire.server_codec"}
