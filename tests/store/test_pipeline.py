"""A transaction of several commands in one request: which replies end it, and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.store.packets import query
from foqs.store.transaction import Loss, Plan, State, Transaction
from tests.store.replies import err, pieces_of, reply

COMMIT = query("COMMIT")
BUSY, NULL = err(1213, b"Deadlock found"), err(1048, b"cannot be null")
CUTS = st.lists(st.integers(0, 1 << 16), max_size=8)


def pipeline() -> Transaction:
    """The fence, two commands of 64 rows, and a last one of two statements."""
    made = Transaction(Plan([], (None, 1, 64, 64, 3, None), 9), [b"request"], 4)
    assert made.first == b"request"
    return made


def feed(made: Transaction, data: bytes, cuts: list[int]) -> bytes:
    return b"".join([made.received(piece) for piece in pieces_of(data, cuts)])


GOOD = reply(0, 1) + reply(64) + reply(64) + reply(3, 7)


@given(CUTS)
def test_commit_is_sent_after_all_replies(cuts: list[int]) -> None:
    made = pipeline()
    assert feed(made, GOOD[:-1], cuts) == b""
    assert not made.ended
    assert made.received(GOOD[-1:]) == COMMIT
    assert made.received(reply(0)) == b""
    assert (made.state, made.missed) == (State.COMMITTED, 0)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (reply(0, failed=NULL) + reply(64) + reply(64) + reply(3, 7), State.FENCED),
        (reply(0, failed=BUSY) + reply(64) + reply(64) + reply(3, 7), State.FAILED),
        (reply(0, 1) + reply(failed=BUSY) + reply(64) + reply(3, 7), State.FAILED),
        (reply(0, 1) + reply(64) + reply(64) + reply(3, failed=BUSY), State.FAILED),
        (reply(0, 1) + reply(failed=BUSY) + reply(failed=err(1062)) + reply(failed=NULL), State.FAILED),
        (reply(0, 1) + reply(failed=NULL) + reply(64) + reply(3, 7), State.FAILED),
        (reply(0, 0) + reply(64) + reply(64) + reply(3, 7), State.FENCED),
    ],
    ids=str,
)
def test_an_error_ends_it_after_all_replies(answer: bytes, state: State) -> None:
    """COMMIT is never sent: after a deadlock the commands behind it ran outside the transaction."""
    made = pipeline()
    for at in range(len(answer) - 1):
        assert made.received(answer[at : at + 1]) == b""
        assert not made.ended
    assert made.received(answer[-1:]) == b""
    assert made.state is state


def test_the_first_error_counts() -> None:
    made = pipeline()
    made.received(reply(0, 1) + reply(failed=BUSY) + reply(failed=err(1062)) + reply(3, 7))
    assert made.failure is not None
    assert made.failure[0] == 1213  # type: ignore[index]


@given(st.integers(0, len(GOOD) - 1), st.sampled_from(Loss))
def test_a_connection_lost_before_the_last_reply(at: int, why: Loss) -> None:
    made = pipeline()
    made.received(GOOD[:at])
    made.lost(why)
    assert (made.state, made.failure) == (State.FAILED, why)


@pytest.mark.parametrize("answer", [GOOD + reply(0), GOOD[: -len(reply(3, 7))] + reply(3), GOOD + b"\1"], ids=str)
def test_other_replies_end_the_connection(answer: bytes) -> None:
    made = pipeline()
    assert made.received(answer) == b""
    assert (made.state, made.failure) == (State.FAILED, Loss.BAD_REPLY)
