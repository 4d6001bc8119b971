"""Rules of end events that are taken out, as in `test_mutants`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers import shard_batch
from foqs.buffers.shard_batch import ANSWERED, Chunk, ShardBatch
from foqs.engine import batch_apply, batch_build, end_events, kept_items
from foqs.engine.shard import Shard
from foqs.fairness.keys import LaneKey, lane_key, tenancy_of, topic_key
from foqs.item import Cause, Change, Item, To
from foqs.item_batch import HowEnded
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, NewItem
from foqs.server import shard_thread
from tests.kernel.mutants import Mutants, constant
from tests.sim.simulation import simulate

MANY = 60
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- which ends have events


def _silent(name: str, ends: Callable[[Change], bool], *, seed: int = 0) -> None:
    """Add a mutant that stores no event for some ends."""

    def body(original: Any, shard: Shard, change: Change, now_ms: int) -> Any:
        return None if ends(change) else original(shard, change, now_ms)

    around(end_events, "event_of", "events", seed, name=name)(body)


def _gone(*causes: Cause) -> Callable[[Change], bool]:
    return lambda change: change.to is To.GONE and change.cause in causes


_silent("an_acked_item_has_no_event", _gone(Cause.ACK))
_silent("an_expired_item_has_no_event", _gone(Cause.TTL))
_silent("a_deleted_item_has_no_event", _gone(Cause.DELETE))
_silent("a_cancelled_item_has_no_event", _gone(Cause.CANCEL), seed=34)
_silent("a_dropped_item_has_no_event", _gone(Cause.DROPPED), seed=3)
_silent("a_dead_letter_has_no_event", lambda change: change.move is not None)
_silent("an_item_that_failed_for_good_has_no_event", _gone(Cause.REJECTED, Cause.EXHAUSTED, Cause.LIMIT))
_silent("a_kept_item_has_no_event", lambda change: change.ended is not None)
_silent("an_event_that_ends_has_no_event", lambda change: change.item.lane.topic.key[1] == "ends")
_silent("an_item_whose_lease_is_not_written_has_no_event", lambda change: change.item.unindexed, seed=3)


def _topic_of_any(shard: Shard, lane: Lane[Item]) -> str | None:
    return "ends" if lane.dead else shard.policy_of(lane).on_end_topic


put("the_removal_of_a_dead_letter_has_an_event", end_events, "_topic_of", _topic_of_any, "events")


def _ends_by(name: str, ends: Callable[[Change], bool], *, seed: int = 0) -> None:
    """Add a mutant that takes some changes of items for their ends."""

    def body(original: Any, change: Change) -> HowEnded | None:
        how: HowEnded | None = original(change)
        return HowEnded.FAILED if how is None and ends(change) else how

    around(end_events, "how_ended", "events", seed, name=name)(body)


_ends_by("a_retry_has_an_event", lambda change: change.failed is not None)
_ends_by("a_release_has_an_event", lambda change: change.cause is Cause.RELEASE)
_ends_by("a_lease_has_an_event", lambda change: change.cause is Cause.LEASE)
_ends_by("a_change_of_place_has_an_event", lambda change: change.cause is Cause.CHANGE, seed=6)


@around(end_events, "how_ended", "events", also=[(end_events, "_topic_of", _topic_of_any)])
def a_redrive_has_an_event(original: Any, change: Change) -> HowEnded | None:
    if change.item.lane.dead:
        return HowEnded.FAILED if change.cause is Cause.REDRIVE else None
    how: HowEnded | None = original(change)
    return how


# --------------------------------------------------------------------------------------------- what an event says


def _says(name: str, of: HowEnded, how: HowEnded, *, seed: int = 0) -> None:
    """Add a mutant that confuses two ends."""
    around(end_events, "how_ended", "events", seed, name=name)(
        lambda original, change: how if original(change) is of else original(change)
    )


_says("an_expired_item_is_said_to_be_acked", HowEnded.EXPIRED, HowEnded.COMPLETED)
_says("a_dead_letter_is_said_to_be_deleted", HowEnded.FAILED, HowEnded.DELETED)
_says("a_dropped_item_is_said_to_have_failed", HowEnded.LEASE_ENDED, HowEnded.FAILED, seed=3)
_says("a_cancelled_item_is_said_to_be_deleted", HowEnded.CANCELLED, HowEnded.DELETED, seed=75)


def _leaves_out(name: str, field: str, *, seed: int = 0) -> None:
    """Add a mutant whose events lack a field."""

    def body(original: Any, *about: Any) -> bytes:
        said = json.loads(original(*about))
        said.pop(field, None)
        return json.dumps(said).encode()

    around(end_events, "_payload", "events", seed, name=name)(body)


_leaves_out("the_result_is_left_out", "result")
_leaves_out("the_failure_is_left_out", "failure")


@around(end_events, "_failure", "events")
def the_reason_is_left_out(original: Any, cause: int, attempts: int, reason: bytes, worker: bytes) -> Any:
    return original(cause, attempts, b"", worker)


@around(end_events, "_failure", "events")
def a_failure_has_another_number_of_attempts(original: Any, cause: int, attempts: int, *rest: bytes) -> Any:
    return original(cause, attempts + 1, *rest)


def _makes(name: str, other: Callable[[LaneKey, NewItem, Change], LaneKey], *, seed: int = 0) -> None:
    """Add a mutant that makes another event, or puts it into another lane."""

    def body(original: Any, shard: Shard, change: Change, now_ms: int) -> Any:
        made = original(shard, change, now_ms)
        return made and (other(*made, change), made[1])

    around(end_events, "event_of", "events", seed, name=name)(body)


def _without_ttl(key: LaneKey, event: NewItem, change: Change) -> LaneKey:
    event.expires_at_ms = 0
    return key


def _in_its_topic(key: LaneKey, event: NewItem, change: Change) -> LaneKey:
    return lane_key(topic_key(change.item.lane.key), tenancy_of(key)[0])


_makes("the_event_is_of_no_tenant", lambda key, event, change: lane_key(topic_key(key)), seed=3)
_makes("the_event_is_in_the_topic_of_its_item", _in_its_topic)
_makes("the_event_has_no_ttl", _without_ttl)


# --------------------------------------------------------------------------------------------- its transaction


@around(batch_build, "_take_event", "events")
def memory_delivers_an_event_before_its_commit(
    original: Any, shard: Shard, change: Change, batch: ShardBatch, transaction: Batch, now_ms: int
) -> int:
    room: int = original(shard, change, batch, transaction, now_ms)
    if room:
        chunk = _taken(batch, event := transaction.inserts[-1])
        if event.due_ms or event.expires_at_ms:
            batch_build._note_times(shard.queue, chunk, event)
        shard.memory.stored([chunk])
    return room


def _taken(batch: ShardBatch, event: NewItem) -> Chunk:
    """Take the last event from the batch."""
    key = next(key for key, events in batch.events.items() if events and events[-1] is event)
    batch.events[key].pop()
    return Chunk(ANSWERED, (0,), [event], (key,), 0, in_flight=True)


put("an_event_of_a_failed_transaction_is_stored_again", shard_batch._Answered, "done", False, "events", seed=5)


@around(batch_build, "_take_event", "events", seed=1)
def an_event_of_a_failed_transaction_is_lost(original: Any, shard: Shard, change: Any, *rest: Any) -> int:
    if getattr(change, "told", False):
        return 0
    room: int = original(shard, change, *rest)
    change.told = True
    return room


@around(batch_build, "_take_event", "events", seed=8)
def an_event_is_stored_apart_from_its_end(
    original: Any, shard: Shard, change: Change, batch: ShardBatch, transaction: Batch, now_ms: int
) -> int:
    room: int = original(shard, change, batch, transaction, now_ms)
    if room:
        transaction.together.pop()
    return room


put("the_outcome_of_an_event_is_not_known", shard_thread, "_settle_together", constant(None), "events", seed=1)


@around(batch_build, "_take_event", "events")
def an_event_comes_with_the_next_transaction(
    original: Any, shard: Shard, change: Change, batch: ShardBatch, transaction: Batch, now_ms: int
) -> int:
    room: int = original(shard, change, batch, transaction, now_ms)
    if room:
        chunk = _taken(batch, transaction.inserts.pop())
        shard.queue.chunks.append(replace(chunk, request=_WAITS, in_flight=False))
        shard.queue.chunk_rows += 1
        transaction.together.pop()
    return room


class _Waits(shard_batch._Answered):
    done = False


_WAITS = _Waits()


# --------------------------------------------------------------------------------------------- full databases


def _grows(shard: Shard, change: Change) -> bool:
    return change.to is not To.GONE or kept_items.keep_of(shard, change) is not None


put(
    "a_full_database_takes_ends_with_events", batch_build, "needs_room", _grows, "events", seed=38,
    also=[(batch_apply, "needs_room", _grows)],
)  # fmt: skip
