"""New members that wait for the homes of their batches."""

from __future__ import annotations

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.item_batches import Creation
from foqs.buffers.members import JOIN_MS, Members
from foqs.buffers.shard_batch import ANSWERED, Chunk
from foqs.fairness.keys import lane_key
from foqs.item_batch import NewBatch

NOW_MS = 1_000_000
LANE = lane_key(("ns", "topic"), members=True)


def chunk(request: object = None, *, ordered: bool = False) -> Chunk:
    made = Chunk(request or ANSWERED, (), [], [LANE], 0)  # type: ignore[arg-type]
    made.members, made.ordered = True, ordered
    return made


def test_members_that_wait_ask_their_homes_at_once() -> None:
    members = Members()
    assert members.next_ms == NEVER_MS
    members.join(chunk(), {7: 2, 8: 1}, "ns", NOW_MS)
    assert members.next_ms == 0
    assert [*members.wanted] == [7, 8]
    (join,) = members.joins
    assert (join.waits, join.until_ms) == ({7, 8}, NOW_MS + JOIN_MS)


def test_chunks_are_taken_and_creations_stay() -> None:
    members = Members()
    made = Creation(NewBatch("ns", None, None, NOW_MS, parent=7), NOW_MS, lambda _: None)
    first, second = chunk(), chunk()
    for one in (first, made, second):
        members.join(one, {7: 1}, "ns", NOW_MS)  # type: ignore[arg-type]
    assert members.take_chunks() == [first, second]
    assert [join.what for join in members.joins] == [made]


def test_later_parts_of_an_ordered_request_are_taken() -> None:
    members = Members()

    class Request:
        done = False

    request = Request()
    first, second, plain = chunk(request, ordered=True), chunk(request, ordered=True), chunk(request)
    other = chunk(Request(), ordered=True)
    for one in (first, second, plain, other):
        members.join(one, {7: 1}, "ns", NOW_MS)
    assert members.take_chunks(first) == [second]
    assert [join.what for join in members.joins] == [first, plain, other]


def test_times_follow_the_clock() -> None:
    members = Members()
    members.join(chunk(), {7: 1}, "ns", NOW_MS)
    members.note(NOW_MS)
    members.shift(-500)
    assert (members.due_ms, members.again_ms) == (NOW_MS - 500, NEVER_MS)
    assert members.joins[0].until_ms == NOW_MS + JOIN_MS - 500
