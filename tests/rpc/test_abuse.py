"""Ten thousand of each kind of bad input through real sockets, while a neighbour is served all along."""

import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs.bounds import Limits
from foqs.idl import idl
from tests.rpc.serving import PATIENCE_S, Peer, Served, decoded, enqueue_of, framed, i32, message

SECRET = b"THE-NEIGHBOUR'S-PAYLOAD"
COUNT = 10_000
_PAUSE_S = 0.005  # without one, the neighbour alone keeps a processor busy


class Neighbour:
    """Goes on enqueueing payloads full of SECRET; every answer must be the right one."""

    def __init__(self, served: Served) -> None:
        self.calls = 0
        self._served = served
        self._stop = threading.Event()
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._begun.wait(PATIENCE_S)

    def _run(self) -> None:
        try:
            with self._served.peer() as peer:
                while not self._stop.wait(_PAUSE_S):
                    sizes = [len(SECRET) * n for n in range(1, 20)]
                    request = idl.EnqueueRequest("n", [idl.ItemSpec("t", SECRET * n) for n in range(1, 20)])
                    assert [outcome.id for outcome in peer.call("Enqueue", request).outcomes] == sizes
                    self.calls += 1
                    self._begun.set()
        except BaseException as failure:  # noqa: BLE001 - raised by stop()
            self._failure = failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert self._failure is None
        assert self.calls > 0


@pytest.fixture
def neighbour(served: Served) -> Iterator[Neighbour]:
    """At the end: it was served all the time, and nothing is left in the budget or on the server."""
    neighbour = Neighbour(served)
    yield neighbour
    neighbour.stop()
    served.until(lambda: served.server.counters.connections == 0)
    assert served.budget.used_bytes == 0
    assert served.reported == []


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Thrower:
    """Sends bad input; opens a new connection whenever the server closed the one before."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._peer: Peer | None = None
        self.closed = 0
        self.answered = 0

    def throw(self, data: bytes) -> bytes | None:
        """One frame or the rest of one; the answer, or None when the server closed. Ends this
        connection's input when the frame is shorter than it says."""
        peer = self._peer = self._peer or self._served.peer()
        whole = len(data) >= 4 and 0 < struct.unpack_from(">i", data)[0] <= len(data) - 4
        try:
            peer.send(data)
            if not whole:
                peer.socket.shutdown(1)
            answer = peer.frame()
        except OSError:
            answer = None
        if answer is None:
            peer.close()
            self._peer = None
            self.closed += 1
            return None
        assert SECRET not in answer
        self.answered += 1
        return answer

    def stop(self) -> None:
        if self._peer is not None:
            self._peer.close()


@pytest.fixture
def thrower(served: Served) -> Iterator[Thrower]:
    thrower = Thrower(served)
    yield thrower
    thrower.stop()


VALID = message(
    "Enqueue",
    idl.EnqueueRequest(
        "namespace",
        [
            idl.ItemSpec("topic", b"payload", b"metadata", {"k": "v"}, 7, ttl_ms=10),
            idl.ItemSpec("topic", b"payload", priority=8),
        ],
        idl.RequestContext("token", "request", "trace", 1000),
    ),
)


def random_bytes(dice: random.Random) -> bytes:
    return framed(dice.randbytes(dice.randint(1, 300)))


def random_raw(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randint(1, 60))


def random_body(dice: random.Random) -> bytes:
    return framed(VALID[:22] + dice.randbytes(dice.randint(0, 200)))


def random_fields(dice: random.Random) -> bytes:
    """Fields that exist in types that exist, put together at random."""
    pieces = [
        b"\x0f\0\2\x0c" + i32(2),
        b"\x0b\0\1" + i32(2) + b"ab",
        b"\x0d\0\4\x0b\x0b" + i32(1),
        b"\0",
        b"\0\0",
    ]
    pieces += [b"\x0f\0\x63" + bytes((dice.randint(0, 20),)) + i32(dice.choice((-1, 0, 3, 2**31 - 1)))]
    pieces += [bytes((dice.randint(0, 20), 0, dice.randint(0, 16))) + dice.randbytes(dice.choice((1, 4, 8)))]
    return framed(enqueue_of(b"".join(dice.choices(pieces, k=dice.randint(1, 12)))))


def flipped(dice: random.Random) -> bytes:
    content = bytearray(VALID)
    for _ in range(dice.randint(1, 3)):
        content[dice.randrange(len(content))] = dice.randrange(256)
    content[3] = 1 if content[3] == 4 else content[3]  # a oneway message would be right not to be answered
    return framed(bytes(content))


def wrong_version(dice: random.Random) -> bytes:
    return framed(struct.pack(">I", dice.randrange(1 << 32) & ~0x8000_0000) + VALID[4:])


def absurd_size(dice: random.Random) -> bytes:
    count = i32(dice.choice((10_000_000, 2**31 - 1, -1, -(2**31), dice.randint(1000, 1 << 30))))
    element = bytes((dice.randint(0, 20),))
    return framed(
        dice.choice(
            (
                enqueue_of(b"\x0f\0\2" + element + count),
                enqueue_of(b"\x0f\0\x63" + element + count),
                enqueue_of(b"\x0d\0\x63\x0b" + element + count),
                enqueue_of(b"\x0b\0\1" + count),
                enqueue_of(b"\x0f\0\2\x0c" + i32(1) + b"\x0d\0\4\x0b\x0b" + count),
                enqueue_of(b"\x0f\0\2\x0c" + i32(1) + b"\x0b\0\2" + count),
            )
        )
    )


def bad_length(dice: random.Random) -> bytes:
    size = dice.choice((0, -1, -(2**31), 2**31 - 1, Limits().frame_bytes + dice.randint(1, 1000)))
    return struct.pack(">i", size) + dice.randbytes(dice.randint(0, 50))


def unknown_method(dice: random.Random) -> bytes:
    name = dice.randbytes(dice.randint(0, 40))
    return framed(b"\x80\x01\0\1" + i32(len(name)) + name + dice.randbytes(4) + dice.randbytes(dice.randint(0, 40)))


BAD: list[Callable[[random.Random], bytes]] = [
    random_bytes,
    random_raw,
    random_body,
    random_fields,
    flipped,
    wrong_version,
    absurd_size,
    bad_length,
    unknown_method,
]


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad.__name__))
def test_ten_thousand_bad_inputs(neighbour: Neighbour, thrower: Thrower, bad: Callable[[random.Random], bytes]) -> None:
    dice = random.Random(7)
    for _ in range(COUNT):
        answer = thrower.throw(bad(dice))
        if answer is not None:
            decoded(answer, "Enqueue")
    assert thrower.closed + thrower.answered == COUNT
    if bad in (random_bytes, random_raw, wrong_version, bad_length):
        assert thrower.answered == 0
    if bad is unknown_method:
        assert thrower.closed == 0


def test_every_truncation_of_valid_frames(neighbour: Neighbour, thrower: Thrower) -> None:
    requests = (
        VALID,
        message("Ack", idl.AckRequest([idl.AckItem(1, 2)] * 5)),
        message("DeleteItems", idl.DeleteItemsRequest([1, 2, 3])),
        message("ListItems", idl.ListItemsRequest("ns", "topic", 1, 10, "cursor")),
    )
    for content in requests:
        for size in range(1, len(content)):
            # Both a whole frame with a part of the message, and the beginning of a frame with the end of the
            # connection.
            assert thrower.throw(framed(content[:size])) is None
            assert thrower.throw(framed(content)[: size + 3]) is None


def test_an_oversized_frame_is_not_waited_for(served: Served, neighbour: Neighbour) -> None:
    for size in (Limits().frame_bytes + 1, 2**31 - 1, -1, 0):
        with served.peer() as peer:
            peer.send(struct.pack(">i", size))
            assert peer.is_closed()
    assert served.server.counters.closed == {"oversized": 2, "malformed": 2}


@pytest.mark.slow
def test_resident_memory_is_stable(served: Served, thrower: Thrower) -> None:
    dice = random.Random(11)
    sizes = []
    for _ in range(3):
        for number in range(COUNT):
            thrower.throw(BAD[number % len(BAD)](dice))
        sizes.append(rss_bytes())
    assert sizes[2] - sizes[1] < 8 << 20
