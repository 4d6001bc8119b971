"""Answers as frames: a response as a struct, or as the bytes of that struct."""

import pytest

from foqs.idl import idl
from foqs.wire.protocol import encode_struct
from foqs.wire.server_codec import ReplyEncoder, TooLarge, served_method

SEQID = bytes((0, 0, 0, 7))
ENQUEUE = served_method(idl.Foqs, "Enqueue")
RESPONSE = idl.EnqueueResponse([idl.EnqueueOutcome(id=number) for number in range(20)])


def test_a_response_as_bytes_makes_the_frame_of_its_struct() -> None:
    encoder = ReplyEncoder(1 << 20)
    assert encoder.success(ENQUEUE, SEQID, encode_struct(RESPONSE)) == encoder.success(ENQUEUE, SEQID, RESPONSE)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_frame_has_at_most_the_bytes_of_the_limit(as_bytes: bool) -> None:
    response = encode_struct(RESPONSE) if as_bytes else RESPONSE
    size = len(ReplyEncoder(1 << 20).success(ENQUEUE, SEQID, response)) - 4
    assert ReplyEncoder(size).success(ENQUEUE, SEQID, response)
    with pytest.raises(TooLarge):
        ReplyEncoder(size - 1).success(ENQUEUE, SEQID, response)


def test_the_response_of_another_method_is_refused() -> None:
    with pytest.raises(TypeError, match="Enqueue answers with EnqueueResponse, not AckResponse"):
        ReplyEncoder(1 << 20).success(ENQUEUE, SEQID, idl.AckResponse())
