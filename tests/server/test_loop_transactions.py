"""Bytes between a transaction and a socket: partial writes, ends of the connection, deadlines, and the watch on it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from foqs.server.shard_worker import LoopTransactions
from foqs.store.packets import Err, query
from foqs.store.transaction import Loss, Plan, State, Transaction
from tests.server.loop import WatchingLoop
from tests.store.replies import ok, packet, reply

pytestmark = pytest.mark.memory
TIMEOUT_S = 10.0
PACKET = query("BEGIN;UPDATE shard;INSERT")
COMMIT = query("COMMIT")


class Rig:
    """A connection whose other end is the test. `ends` are what `done` got."""

    def __init__(self) -> None:
        self.loop = WatchingLoop()
        self.ours, self.server = socket.socketpair()
        self.ours.settimeout(TIMEOUT_S)  # as the driver does; underneath the socket does not block
        self.server.settimeout(TIMEOUT_S)
        self.cut = 0
        self.transactions = LoopTransactions(self.loop, TIMEOUT_S, self._ended)  # type: ignore[arg-type]
        self.ends: list[Exception | None] = []

    def _ended(self) -> None:
        self.cut += 1

    def begin(self, data: bytes = PACKET) -> Transaction:
        made = Transaction(Plan(["BEGIN", "UPDATE shard", "INSERT"], (None, 1, 1), 5), [data])
        self.transactions.attach(self.ours)
        self.transactions.run(made, self.ends.append)
        return made

    def answer(self, data: bytes) -> None:
        self.server.sendall(data)
        self.loop.turn()

    def got(self, size: int = 1 << 16) -> bytes:
        return self.server.recv(size)

    def commit(self) -> Transaction:
        made = self.begin()
        assert self.got() == PACKET
        self.answer(reply(0, 1, 1))
        assert self.got() == COMMIT
        self.answer(reply(0))
        return made


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.transactions.close()
    assert not made.loop.readers and not made.loop.writers and not made.loop.set
    made.ours.close()
    made.server.close()


def test_transactions_follow_one_another(rig: Rig) -> None:
    """The socket is watched once and one timer serves them all."""
    for number in range(1, 4):
        made = rig.commit()
        assert (made.state, made.missed) == (State.COMMITTED, 0)
        assert rig.ends == [None] * number
        assert not rig.transactions.busy
        rig.loop.wait(1_000)
    assert rig.loop.watched == 1
    assert rig.loop.set == [7_000]
    rig.loop.wait(7_000)
    assert rig.loop.set == [], "no timer while there is no transaction"


def test_bytes_arrive_one_by_one(rig: Rig) -> None:
    made = rig.begin()
    rig.got()
    for byte in reply(0, 1, 1):
        assert made.state is State.SENDING
        rig.answer(bytes([byte]))
    assert rig.got() == COMMIT
    for byte in reply(0):
        assert not made.ended
        rig.answer(bytes([byte]))
    assert made.state is State.COMMITTED


def test_a_large_packet_is_written_in_parts(rig: Rig) -> None:
    rig.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    large = query("x" * 200_000)
    rig.begin(large)
    assert rig.loop.writers, "the socket took all of it"
    got, turns = b"", 0
    while len(got) < len(large):
        got += rig.got(1_000)
        turns += rig.loop.turn()
    assert got == large
    assert turns > 10
    assert not rig.loop.writers
    rig.answer(reply(0, 1, 1))
    rig.answer(reply(0))
    assert rig.ends == [None]


def test_a_reply_to_half_a_packet_ends_the_connection(rig: Rig) -> None:
    """Even one that looks right: a roll-back would be read as the rest of the packet."""
    rig.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    made = rig.begin(query("x" * 200_000))
    rig.answer(reply(0, 1, 1))
    assert (made.state, made.failure) == (State.FAILED, Loss.BAD_REPLY)
    assert not rig.loop.writers and not rig.loop.readers
    assert rig.ends == [None]


@pytest.mark.parametrize("commits", [False, True])
def test_the_connection_ends(rig: Rig, commits: bool) -> None:
    made = rig.begin()
    rig.got()
    if commits:
        rig.answer(reply(0, 1, 1))
        rig.got()
    rig.server.close()
    rig.loop.turn()
    assert (made.state, made.failure) == (State.IN_DOUBT if commits else State.FAILED, Loss.END)
    assert rig.ends == [None]


def test_a_connection_that_takes_no_bytes(rig: Rig) -> None:
    """The end is known before `run` returns."""
    rig.server.close()
    made = rig.begin()
    assert (made.state, made.failure, rig.ends) == (State.FAILED, Loss.WRITE, [None])


def test_a_connection_that_ends_within_a_packet(rig: Rig) -> None:
    rig.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    made = rig.begin(query("x" * 200_000))
    rig.server.shutdown(socket.SHUT_RD)
    rig.loop.writers[rig.ours.fileno()]()
    assert (made.state, made.failure, rig.ends) == (State.FAILED, Loss.WRITE, [None])
    assert not rig.loop.writers


@pytest.mark.parametrize("commits", [False, True])
def test_a_server_that_hangs(rig: Rig, commits: bool) -> None:
    """Each reply has the whole time-out."""
    made = rig.begin()
    if commits:
        rig.loop.wait(9_000)
        rig.answer(reply(0, 1, 1))
    rig.loop.wait(9_999)
    assert not made.ended
    rig.loop.wait(1)
    assert (made.state, made.failure) == (State.IN_DOUBT if commits else State.FAILED, Loss.DEADLINE)
    assert rig.ends == [None]


def test_a_packet_that_is_taken_slowly_is_not_late(rig: Rig) -> None:
    rig.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    made = rig.begin(query("x" * 200_000))
    for _ in range(3):
        rig.loop.wait(9_000)
        while not rig.loop.turn():
            rig.got(1_000)
    assert not made.ended


def test_a_reply_that_waits_for_the_loop_is_not_late(rig: Rig) -> None:
    """The loop itself was held up: the timer's turn comes before the socket's."""
    made = rig.begin()
    rig.server.sendall(reply(0, 1, 1))
    rig.loop.wait(30_000)
    assert made.state is State.COMMITTING
    rig.server.sendall(reply(0))
    rig.loop.wait(30_000)
    assert made.state is State.COMMITTED
    assert rig.ends == [None]


def test_a_connection_that_ends_between_transactions(rig: Rig) -> None:
    """It would be readable in each turn of the loop. The host learns of it before the next transaction."""
    rig.commit()
    assert not rig.cut
    rig.server.close()
    assert rig.loop.turn()
    assert not rig.loop.readers
    assert rig.cut == 1
    assert rig.begin().state is State.FAILED


def test_a_notice_between_transactions_is_read_by_the_next(rig: Rig) -> None:
    rig.commit()
    rig.answer(packet(0, b"\xff\x87\x07Connection was killed"))
    assert not rig.loop.readers
    made = rig.begin()
    rig.loop.turn()
    assert made.state is State.FAILED
    assert made.failure == Err(1927, "", "Connection was killed")


def test_another_file_with_the_number_is_not_watched(rig: Rig) -> None:
    rig.commit()
    number = rig.ours.fileno()
    rig.transactions.detach()
    rig.ours.close()
    other, end = socket.socketpair()
    with other, end:
        assert number in (other.fileno(), end.fileno())
        other.sendall(b"x")
        end.sendall(b"x")
        assert not rig.loop.turn()


def test_a_fault_of_ours_is_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = RuntimeError("a fault")

    def fail(*_: object) -> bytes:
        raise fault

    monkeypatch.setattr(Transaction, "received", fail)
    rig.begin()
    rig.answer(packet(1, ok(1)))
    assert rig.ends == [fault]
    assert not rig.loop.readers and not rig.transactions.busy


def test_nothing_happens_after_close(rig: Rig) -> None:
    rig.begin()
    rig.transactions.close()
    rig.server.sendall(reply(0, 1, 1))
    assert not rig.loop.turn()
    rig.loop.wait(20_000)
    assert rig.ends == []
