"""Batches of items at their home: which shards lack ends, and which requests wait."""

from __future__ import annotations

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.item_batches import Home, Homes, Report, Reported, Turn, failed_ids, total
from foqs.item_batch import MOST_FAILED_IDS, BatchPart, BatchRow, BatchState, Counts


def home(batch: int = 7) -> Home:
    return Home(BatchRow(batch, b"ns", BatchState.CLOSED, 0, 1_000))


def part(shard: int, members: int, completed: int, failed: tuple[int, ...] = ()) -> BatchPart:
    return BatchPart(7, shard, 1, 1, Counts(members, completed, len(failed)), failed)


def test_a_shard_lacks_ends_until_its_members_have_ended() -> None:
    one = home()
    one.parts = {1: part(1, 2, 2), 2: part(2, 3, 1, (5,)), 3: part(3, 1, 0, (4,))}
    assert one.lacking() == {2}
    one.unheard = {9}
    assert one.lacking() == {2, 9}
    assert one.counts() == total(one.parts.values()) == Counts(6, 3, 2)


def test_the_first_failed_members_of_all_shards_are_named() -> None:
    many = tuple(range(1_000, 1_000 + MOST_FAILED_IDS))
    assert failed_ids([part(1, 9, 0, (5, 8)), part(2, 200, 0, many)]) == (5, 8, *many[:-2])


def test_requests_about_an_ending_batch_wait_for_its_end() -> None:
    homes = Homes()
    homes.live[7] = home()
    reported = Reported(Report(part(1, 1, 1)), lambda _: None)
    turn = Turn("ns", 7, BatchState.CANCELLED, lambda _: None)
    homes.held = [reported, turn]
    assert not homes.writes
    assert homes.next_ms == NEVER_MS
    homes.ended(7)
    assert homes.recent == {7: b"ns"}
    assert (homes.reports, homes.turns, homes.writes) == ([reported], [turn], True)


def test_a_new_owner_writes_nothing_before_it_knows_its_batches() -> None:
    homes = Homes(known=False)
    homes.turns.append(Turn("ns", 7, BatchState.CLOSED, lambda _: None))
    assert (homes.writes, homes.next_ms) == (False, 0)
    homes.loading = True
    assert homes.next_ms == NEVER_MS
    homes.known = True
    assert homes.writes
