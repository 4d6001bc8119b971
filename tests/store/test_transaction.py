"""The course of one transaction over the bytes of a connection: which packets it sends, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.store.packets import Err, query
from foqs.store.protocol import Fenced
from foqs.store.transaction import Loss, Plan, State, Transaction
from tests.store.replies import err, ok, packet, pieces_of, reply

COMMIT = query("COMMIT")
BUSY = err(1213, b"Deadlock found")
NULL = err(1048, b"Column 'seq' cannot be null")
LOSSES = st.sampled_from(Loss)
CUTS = st.lists(st.integers(0, 1 << 16), max_size=8)


def transaction(*rows: int | None, packets: int = 1) -> Transaction:
    """BEGIN, the fence and writes that must match `rows`."""
    plan = Plan(["BEGIN", "UPDATE shard", *[f"WRITE {at}" for at in range(len(rows))]], (None, 1, *rows), 9)
    return Transaction(plan, [query(f"packet {at}") for at in range(packets)])


def short(*rows: int | None) -> Transaction:
    """A transaction that travels with its COMMIT, and whose packet is sent."""
    texts = ["BEGIN", "UPDATE shard", *[f"WRITE {at}" for at in range(len(rows))], "COMMIT"]
    made = Transaction(Plan(texts, (None, 1, *rows), 9, with_commit=True), [query(";".join(texts))])
    assert made.first == query(";".join(texts))
    return made


def end_of(made: Transaction) -> tuple[State, Err | Loss | None, int]:
    return made.state, made.failure, made.missed


def feed(made: Transaction, data: bytes, cuts: Sequence[int] = ()) -> bytes:
    """Return the bytes that the transaction sends for those that arrive, cut into pieces."""
    return b"".join([made.received(piece) for piece in pieces_of(data, list(cuts))])


def test_a_transaction_commits_after_all_replies() -> None:
    made = transaction(3, None, 2)
    assert made.first == query("packet 0")
    whole = reply(0, 1, 3, 77, 2)
    assert feed(made, whole[:-1]) == b""
    assert not made.ended
    assert made.received(whole[-1:]) == COMMIT
    assert (made.state, made.ended) == (State.COMMITTING, False)
    assert made.received(reply(0)) == b""
    assert (end_of(made), made.ended) == ((State.COMMITTED, None, 0), True)


def test_a_packet_is_sent_after_the_replies_to_the_one_before() -> None:
    """Statements behind a deadlock would run outside the transaction, which it ended."""
    made = transaction(1, 1, packets=3)
    assert made.first == query("packet 0")
    assert feed(made, reply(0, 1)) == query("packet 1")
    assert feed(made, reply(1)) == query("packet 2")
    assert feed(made, reply(1)) == COMMIT


@pytest.mark.parametrize("packets", [1, 2])
def test_nothing_is_sent_behind_an_error(packets: int) -> None:
    made = transaction(1, 1, packets=packets)
    assert feed(made, reply(0, 1, failed=BUSY)) == b""
    assert end_of(made) == (State.FAILED, Err(1213, "HY000", "Deadlock found"), 0)


@pytest.mark.parametrize(
    "answer", [reply(0, 0), reply(0, 0, 1, 1), reply(0, 2, 1, 1), reply(0, 0, 1, failed=BUSY)], ids=str
)
def test_a_fence_that_matches_no_row_comes_before_errors(answer: bytes) -> None:
    made = transaction(1, 1, packets=2)
    assert feed(made, answer) == b""
    assert end_of(made) == (State.FENCED, None, 0)


def test_rows_that_are_missed_are_counted() -> None:
    made = transaction(3, None, 2, 5)
    assert feed(made, reply(0, 1, 1, 9, 4, 5) + b"") == COMMIT
    made.received(reply(0))
    assert made.missed == 4
    assert made.plan.missed([0, 1, 1, 9, 4, 5]) == 4
    with pytest.raises(Fenced):
        made.plan.missed([0, 0, 1])


def test_an_error_of_the_commit_leaves_the_outcome_in_doubt() -> None:
    made = transaction(1)
    feed(made, reply(0, 1, 1))
    assert feed(made, packet(1, BUSY)) == b""
    assert end_of(made) == (State.IN_DOUBT, Err(1213, "HY000", "Deadlock found"), 0)


@pytest.mark.parametrize(
    "answer",
    [
        reply(0, 1),  # a reply is missing
        reply(0, 1, 1, 1),
        reply(0, 1, 1) + reply(0),  # COMMIT was not sent
        reply(0, 1, 1) + b"\1",
        reply(0, 1, failed=BUSY) + b"\1",
        packet(1, b"\1"),
    ],
    ids=str,
)
def test_other_replies_end_the_connection(answer: bytes) -> None:
    made = transaction(1)
    assert feed(made, answer) == b""
    assert end_of(made) == (State.FAILED, Loss.BAD_REPLY, 0)


@pytest.mark.parametrize("answer", [reply(0, 0), packet(1, ok(0)) + b"\1", packet(1, b"\1"), packet(3, ok(0))], ids=str)
def test_other_replies_to_the_commit_leave_it_in_doubt(answer: bytes) -> None:
    made = transaction(1)
    feed(made, reply(0, 1, 1))
    assert feed(made, answer) == b""
    assert end_of(made) == (State.IN_DOUBT, Loss.BAD_REPLY, 0)


@pytest.mark.parametrize("packets", [1, 2])
def test_a_fence_that_fails(packets: int) -> None:
    made = transaction(1, packets=packets)
    assert feed(made, reply(0, failed=NULL)) == b""
    assert end_of(made)[0] is State.FENCED


@pytest.mark.parametrize(
    ("answer", "state", "missed"),
    [
        (reply(0, 1, 3, 77, 2, 0), State.COMMITTED, 0),
        (reply(0, 1, 1, 77, 3, 0), State.COMMITTED, 3),
        (reply(failed=BUSY), State.FAILED, 0),
        (reply(0, failed=NULL), State.FENCED, 0),
        (reply(0, failed=BUSY), State.FAILED, 0),
        (reply(0, 1, failed=NULL), State.FAILED, 0),
        (reply(0, 1, 3, 77, failed=BUSY), State.FAILED, 0),
        (reply(0, 1, 3, 77, 2, failed=BUSY), State.IN_DOUBT, 0),  # an error of COMMIT
        (reply(0, 0, 3, 77, 2, 0), State.FENCED, 0),  # the row is missing
        (reply(0, 1, 3, 77, 2), State.IN_DOUBT, 0),
        (reply(0, 1, 3, 77, 2, 0, 0), State.IN_DOUBT, 0),
        (reply(0, 1, 3, 77, 2, 0) + b"\1", State.IN_DOUBT, 0),
    ],
    ids=str,
)
def test_a_transaction_with_its_commit(answer: bytes, state: State, missed: int) -> None:
    made = short(3, None, 2)
    assert feed(made, answer) == b""
    assert (made.ended, made.state, made.missed) == (True, state, missed)


def known_after(answer: bytes, cuts: Sequence[int] = ()) -> dict[tuple[int | None, ...], bytes]:
    """Return the replies that are remembered after a transaction with its COMMIT and this reply."""
    known: dict[tuple[int | None, ...], bytes] = {}
    made = Transaction(short(3, None, 2).plan, [b"packet"], known=known)
    feed(made, answer, cuts)
    return known


GOOD = reply(0, 1, 3, 77, 2, 0)


@given(CUTS, CUTS)
def test_a_known_reply_is_not_read(cuts: list[int], again: list[int]) -> None:
    known = known_after(GOOD, cuts)
    assert known == {(None, 1, 3, None, 2): GOOD}
    made = Transaction(short(3, None, 2).plan, [b"packet"], known=known)
    assert feed(made, GOOD, again) == b""
    assert (made.ended, end_of(made)) == (True, (State.COMMITTED, None, 0))
    assert made._replies is None


@pytest.mark.parametrize(
    "answer",
    [
        reply(0, 1, 1, 77, 2, 0),  # rows were missed
        reply(0, 1, 3, 77, 2, failed=BUSY),
        reply(0, 0, 3, 77, 2, 0),
        GOOD + b"\1",
        GOOD[:-1],
        reply(0, 1, 3, 77, *[2] * 40, 0),
    ],
    ids=str,
)
def test_other_replies_are_not_remembered(answer: bytes) -> None:
    assert known_after(answer) == {}


@given(
    st.sampled_from([reply(0, 1, 1, 77, 2, 0), reply(0, 1, 3, 5, 2, 0), reply(0, failed=NULL), reply(0, 1, 3, 77, 2)]),
    CUTS,
)
def test_other_bytes_than_the_known_reply_are_read(answer: bytes, cuts: list[int]) -> None:
    """They may begin as it does."""
    plan = short(3, None, 2).plan
    first, second = (Transaction(plan, [b"packet"], known=known) for known in ({plan.rows: GOOD}, None))
    for made in (first, second):
        feed(made, answer, cuts)
        if not made.ended:
            made.lost(Loss.END)
    assert end_of(first) == end_of(second)


def test_few_replies_are_remembered() -> None:
    known: dict[tuple[int | None, ...], bytes] = {}
    for count in range(200):
        feed(Transaction(short(count).plan, [b"packet"], known=known), reply(0, 1, count, 0))
        assert 0 < len(known) <= 64


@given(LOSSES, st.data())
def test_a_connection_lost_with_its_commit(why: Loss, data: st.DataObject) -> None:
    made = short(1, 1)
    whole = reply(0, 1, 1, 1, 0)
    assert made.received(whole[: data.draw(st.integers(0, len(whole) - 1))]) == b""
    made.lost(why)
    assert end_of(made) == (State.IN_DOUBT, why, 0)


@given(LOSSES, st.data())
def test_a_connection_lost_at_any_byte(why: Loss, data: st.DataObject) -> None:
    """The outcome is in doubt if COMMIT was sent, and else certainly failed."""
    made = transaction(1, 1, packets=2)
    first, second = reply(0, 1, 1), reply(1)
    whole = first + second + reply(0)
    at = data.draw(st.integers(0, len(whole) - 1))
    for piece in (whole[: min(at, len(first))], whole[len(first) : at][: len(second)], whole[len(first + second) : at]):
        made.received(piece)
    made.lost(why)
    state = State.FAILED if at < len(first + second) else State.IN_DOUBT
    assert (end_of(made), made.ended) == ((state, why, 0), True)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.booleans(), st.booleans(), CUTS, CUTS)
def test_any_cut_of_the_bytes_gives_the_same_end(
    counts: list[int], fails: bool, commits: bool, cuts: list[int], commit_cuts: list[int]
) -> None:
    """The first reply and that to COMMIT."""
    answer = reply(0, *counts, failed=BUSY if fails else b"")
    last = reply(0) if commits else packet(1, BUSY)
    ends = []
    for first, second in (([], []), (cuts, commit_cuts), (list(range(len(answer))), list(range(len(last))))):
        made = transaction(*[1] * (len(counts) - 1))
        sent = feed(made, answer, first)
        assert made.ended == (sent == b"")
        if sent:
            assert sent == COMMIT
            assert feed(made, last, second) == b""
        assert made.ended
        ends.append(end_of(made))
    assert ends[0] == ends[1] == ends[2]
    committed = counts[0] == 1 and not fails and commits
    assert (ends[0][0] is State.COMMITTED) is committed
