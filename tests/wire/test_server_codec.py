"""Answers as frames: a response as a struct, or as the bytes of that struct, which the call puts into a frame."""

from types import SimpleNamespace
from typing import Any

import pytest

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.rpc.call import Call
from foqs.wire.protocol import encode_struct
from foqs.wire.server_codec import ReplyEncoder, served_method

SEQID = bytes((0, 0, 0, 7))
ENQUEUE = served_method(idl.Foqs, "Enqueue")
RESPONSE = idl.EnqueueResponse([idl.EnqueueOutcome(id=number) for number in range(20)])


class Asking(Call):
    """A call whose connection keeps the frames of its answers."""

    def __init__(self, frame_bytes: int) -> None:
        self.frames: list[bytes] = []
        self.refusal: FoqsError | None = None
        connection: Any = SimpleNamespace(
            encoder=ReplyEncoder(frame_bytes), counters=SimpleNamespace(too_large=0),
            requests=SimpleNamespace(now_s=lambda: 0.0), peer="", certified=(), answer=self._answer,
        )  # fmt: skip
        super().__init__(connection, ENQUEUE, SEQID, idl.EnqueueRequest(), 1)

    def _answer(self, _: Call, frame: bytes) -> bool:
        self.frames.append(frame)
        return True

    def fail(self, error: FoqsError) -> bool:
        self.refusal = error
        return True


def test_a_response_as_bytes_makes_the_frame_of_its_struct() -> None:
    call = Asking(1 << 20)
    assert call.reply(encode_struct(RESPONSE))
    assert call.reply(RESPONSE)
    assert call.frames[0] == call.frames[1] == ReplyEncoder(1 << 20).success(ENQUEUE, SEQID, RESPONSE)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_frame_has_at_most_the_bytes_of_the_limit(as_bytes: bool) -> None:
    size = len(ReplyEncoder(1 << 20).success(ENQUEUE, SEQID, RESPONSE)) - 4
    fitting, larger = Asking(size), Asking(size - 1)
    response = encode_struct(RESPONSE) if as_bytes else RESPONSE
    assert fitting.reply(response)
    assert not larger.reply(response)
    assert (larger.frames, str(larger.refusal)) == ([], "the answer does not fit a frame: ask for less at once")


def test_the_response_of_another_method_is_refused() -> None:
    with pytest.raises(TypeError, match="Enqueue answers with EnqueueResponse, not AckResponse"):
        ReplyEncoder(1 << 20).success(ENQUEUE, SEQID, idl.AckResponse())
