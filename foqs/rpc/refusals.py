"""Answers to whole frames that reach no handler."""

from __future__ import annotations

from foqs.errors import Unauthenticated
from foqs.rpc.counters import RpcCounters
from foqs.wire.protocol import (
    CALL,
    END_WAIT,
    FRAME_HEAD_BYTES,
    INVALID_MESSAGE_TYPE,
    ONEWAY,
    SMALL_BYTES,
    UNKNOWN_METHOD,
    VERSION_1,
)
from foqs.wire.server_codec import ReplyEncoder, UnknownCall

_ONEWAY_WORD = (VERSION_1 | ONEWAY).to_bytes(4, "big")
_NAME_BYTES = 255  # of an unknown method that the answer repeats


def is_oneway(data: bytes | bytearray) -> bool:
    """Return True if `data` begins with the frame of a oneway message."""
    return data[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + 4] == _ONEWAY_WORD


def not_served(message: UnknownCall, counters: RpcCounters, encoder: ReplyEncoder) -> bytes | None:
    """The answer to a message that is no call of a served method. None for a oneway message, which gets no answer by
    definition and is dropped, as no method of the service is one."""
    if message.message_type == ONEWAY:
        counters.refused["oneway"] += message.name != END_WAIT
        return None
    kind, why = UNKNOWN_METHOD, "unknown method"
    if message.message_type != CALL:
        kind, why = INVALID_MESSAGE_TYPE, "message type"
    counters.refused[why] += 1
    return encoder.refusal(message.name[:_NAME_BYTES], message.seqid, kind, why)


def too_large(size_bytes: int) -> Unauthenticated:
    """The error of a large frame before the first authenticated request of its connection."""
    return Unauthenticated(
        f"a request of {size_bytes} bytes came before any authenticated request on this connection, where at most "
        f"{SMALL_BYTES} bytes are read: send a small request with the token first, such as GetServerInfo"
    )
