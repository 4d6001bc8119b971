"""A database that does not answer: unsent work is refused as such, and sent work has an unknown outcome."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.buffers.reads import ListRead
from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine.listing import Listing
from foqs.errors import OutcomeUnknown, Unavailable
from foqs.ids import shard_of
from tests.engine.laboratory import KEY, Laboratory, reads_of

HANG_MS = 1_000
LONG_MS = 30_000
LOST = BatchResult(Outcome.FAILED, down=True, error="gone")
IN_DOUBT = BatchResult(Outcome.UNKNOWN, down=True, error="gone")
ENDED = BatchResult(Outcome.FAILED, down=True, ended=True, error="ended")
AWAY = BatchResult(down=True, error="cannot connect")


def kinds(answers: list[Any]) -> list[Any]:
    return [type(one) if isinstance(one, Exception) else one for one in answers]


def leased(lab: Laboratory, count: int) -> list[tuple[int, int]]:
    lab.stored(*[lab.item() for _ in range(count)])
    return [(item_id, lab.lease_of(item_id)) for item_id in lab.taken(count=count)]


def items_of(lab: Laboratory) -> int:
    return sum(lane.total for shard in lab.engine.state.shards.values() for lane in shard.memory.lanes.values())


def test_a_hang_sends_waiting_items_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    sent = lab.enqueue(timeout_ms=LONG_MS)
    ((shard, batch),) = lab.send()
    waiting = lab.enqueue(timeout_ms=LONG_MS)
    lab.engine.state.shards[2].owner.takes_new = True
    lab.ring(HANG_MS)
    assert shard.owner.breaker.closed and not sent
    lab.ring(1)
    assert not shard.owner.breaker.closed
    lab.settle()
    assert [shard_of(item_id) for item_id in waiting] == [2]
    assert not sent
    lab.ring(HANG_MS)
    assert kinds(sent) == [OutcomeUnknown]
    lab.arrive(shard, batch)
    assert len(sent) == 1, "the caller has its answer"
    assert items_of(lab) == 2, "the item is stored all the same"


def test_of_two_acks_the_one_that_was_sent_is_unknown() -> None:
    lab = Laboratory(1)
    first, second = leased(lab, 2)
    sent = lab.ack(first, timeout_ms=LONG_MS)
    ((shard, batch),) = lab.send()
    waiting = lab.ack(second, timeout_ms=LONG_MS)
    lab.ring(HANG_MS)
    assert not waiting
    lab.ring(1)
    assert kinds(waiting) == [Unavailable]
    assert waiting[0].retry_after_ms > 0  # type: ignore[union-attr]
    assert not sent
    lab.ring(HANG_MS)
    assert kinds(sent) == [OutcomeUnknown]
    lab.arrive(shard, batch)
    lab.settle()
    assert items_of(lab) == 1, "an ack that was refused changes nothing later"
    assert lab.lease_of(second[0]) == second[1]
    again = lab.ack(second)
    lab.settle()
    assert again == [None] and not items_of(lab)


def test_later_requests_wait_no_longer_than_a_hang() -> None:
    lab = Laboratory(1)
    first, second = leased(lab, 2)
    lab.ack(first, timeout_ms=LONG_MS)
    lab.send()
    lab.ring(HANG_MS + 1)
    later = lab.ack(second, timeout_ms=LONG_MS)
    look = lab.look(first[0] + 1_000)
    until_ms = lab.now_ms + HANG_MS
    while not (later and look) and lab.now_ms < until_ms:
        lab.ring(max(1, lab.engine.next_ms(lab.now_ms) - lab.now_ms))
    assert kinds(later) == [Unavailable]
    assert type(look[0][2]) is Unavailable


def test_refused_changes_do_not_fill_the_shard() -> None:
    """Consumers repeat their acks while the database is silent."""
    lab = Laboratory(1)
    first, second = leased(lab, 2)
    lab.ack(first, timeout_ms=LONG_MS)
    ((shard, _),) = lab.send()
    lab.ring(HANG_MS + 1)
    for _ in range(10):
        again = lab.ack(second, timeout_ms=LONG_MS)
        lab.ring(200)
        assert kinds(again) == [Unavailable]
    assert not shard.queue.changes


@pytest.mark.parametrize("settled", [True, False])
def test_a_lost_connection_whose_commit_is_unknown(settled: bool) -> None:
    """The database does not come back for some time. Its outcome is applied when it does."""
    lab = Laboratory(1)
    first, second = leased(lab, 2)
    sent, enqueued = lab.ack(first, timeout_ms=LONG_MS), lab.enqueue(timeout_ms=LONG_MS)
    ((shard, batch),) = lab.send()
    waiting = lab.ack(second, timeout_ms=LONG_MS)
    lab.faults[1].commits.append("applied" if settled else "not applied")
    lab.arrive(shard, batch)
    while not sent:
        lab.ring(max(1, lab.engine.next_ms(lab.now_ms) - lab.now_ms))
        for _, again in lab.send():
            assert again.reconnect
            lab.arrive(shard, again, AWAY)
        assert lab.now_ms < batch.begun_ms + 2 * HANG_MS + 500
        assert not waiting or lab.now_ms > batch.begun_ms + HANG_MS
    assert kinds(sent) == kinds(enqueued) == [OutcomeUnknown]
    assert kinds(waiting) == [Unavailable]
    while shard.owner.lost:
        lab.ring(max(1, lab.engine.next_ms(lab.now_ms) - lab.now_ms))
        for _, again in lab.send():
            lab.arrive(shard, again)
    assert shard.owner.down_from_ms is None and shard.queue.unsettled is None
    lab.settle()
    assert items_of(lab) == (2 if settled else 1)


def test_an_ended_connection_costs_no_request() -> None:
    """Nothing was sent: the next connection is made at once, and all work waits for it."""
    lab = Laboratory(1)
    (lease,) = leased(lab, 1)
    acked, stored = lab.ack(lease), lab.enqueue()
    keyed, look = lab.enqueue_keyed("a"), lab.look(lease[0] + 1_000)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, ENDED)
    ((_, again),) = lab.send()
    assert again.reconnect and shard.owner.breaker.closed
    lab.arrive(shard, again, BatchResult(settled=False))
    lab.settle()
    assert acked == [None] and all(isinstance(one, int) for one in (*stored, *keyed))
    assert look == [(None, None, None)]
    assert items_of(lab) == 2


def test_an_ended_connection_of_a_dead_database() -> None:
    """The outcome is known: nothing was stored."""
    lab = Laboratory(1)
    (lease,) = leased(lab, 1)
    answers = [lab.ack(lease, timeout_ms=LONG_MS), lab.enqueue(timeout_ms=LONG_MS)]
    answers.append(lab.enqueue_keyed("a", timeout_ms=LONG_MS))
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, ENDED)
    began_ms = lab.now_ms
    while not all(answers):
        for _, again in lab.send():
            lab.arrive(shard, again, AWAY)
        lab.ring(max(1, lab.engine.next_ms(lab.now_ms) - lab.now_ms))
        assert lab.now_ms < began_ms + HANG_MS + 500
    assert [kinds(one) for one in answers] == [[Unavailable]] * 3
    assert not shard.queue.keys.pending
    assert not shard.queue.chunk_rows and not shard.queue.chunks


def test_lists_are_refused_and_their_late_results_dropped() -> None:
    lab = Laboratory(1)
    leased(lab, 1)
    pages: list[Any] = []
    errors: list[Any] = []

    def ask() -> None:
        listing = Listing(lab.engine.state, KEY, 3, 10, 1 << 20, None, lambda *page: pages.append(page), errors.append)
        lab.engine.list(listing, lab.now_ms, LONG_MS)

    ask()
    ((shard, batch),) = lab.send()
    assert reads_of(batch, ListRead)
    ask()
    lab.engine.pump(lab.now_ms)
    lab.ring(HANG_MS + 1)
    assert kinds(errors) == [Unavailable] * 2
    lab.arrive(shard, batch)
    lab.settle()
    assert not pages and len(errors) == 2


def test_the_clock_moves_the_wait_with_it() -> None:
    lab = Laboratory(1)
    sent = lab.enqueue(timeout_ms=LONG_MS)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, IN_DOUBT)
    lab.now_ms += 60_000
    lab.engine.clock_set(60_000)
    lab.ring(2 * HANG_MS)
    assert not sent
    lab.ring(100)
    assert kinds(sent) == [OutcomeUnknown]


def test_a_database_that_answers_again_is_waited_for_again() -> None:
    lab = Laboratory(1)
    for _ in range(3):
        sent = lab.enqueue(timeout_ms=LONG_MS)
        ((shard, batch),) = lab.send()
        lab.ring(HANG_MS)
        assert not sent
        lab.arrive(shard, batch)
        assert isinstance(sent[0], int)
