"""Requests of several commands on a socket: replies that arrive before the last byte is written."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from foqs.store.packets import query
from foqs.store.transaction import Loss, Plan, State, Transaction
from tests.server.test_loop_transactions import COMMIT, Rig
from tests.store.replies import err, reply

pytestmark = pytest.mark.memory
REQUEST = query("UPDATE shard") + query("x" * 200_000)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    yield made
    made.transactions.close()
    made.ours.close()
    made.server.close()


def begin(rig: Rig) -> Transaction:
    made = Transaction(Plan([], (None, 1, 64), 5), [REQUEST], 2)
    rig.transactions.attach(rig.ours)
    rig.transactions.run(made, rig.ends.append)
    assert rig.loop.writers, "the socket took all of it"
    return made


def take_all(rig: Rig) -> None:
    got = b""
    while len(got) < len(REQUEST):
        got += rig.got(1_000)
        rig.loop.turn()
    assert got == REQUEST


@pytest.mark.parametrize("first", [reply(0, 1), reply(0, failed=err(1213))], ids=["ok", "an error"])
def test_a_reply_to_the_first_of_two_commands(rig: Rig, first: bytes) -> None:
    """The server reads the rest of the request, also behind an error."""
    made = begin(rig)
    rig.answer(first)
    assert (made.ended, rig.ends) == (False, [])
    take_all(rig)
    rig.answer(reply(64))
    if first == reply(0, 1):
        assert rig.got() == COMMIT
        rig.answer(reply(0))
        assert made.state is State.COMMITTED
    else:
        assert made.state is State.FAILED
    assert rig.ends == [None]


@pytest.mark.parametrize("replies", [reply(0, 1) + reply(64), reply(0, 1) + reply(failed=err(1213))], ids=str)
def test_replies_to_half_a_request_end_the_connection(rig: Rig, replies: bytes) -> None:
    """COMMIT is not sent: the server would read it as the rest of a command."""
    made = begin(rig)
    rig.answer(replies)
    assert made.failure is Loss.BAD_REPLY
    assert made.state in (State.FAILED, State.IN_DOUBT)
    assert rig.ends == [None]
    assert not rig.loop.writers
