"""Batches of items call back once, after their last member: kills of hosts and consumers, and the verdict about what
clients and databases have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from foqs.item_batch import BatchState, Counts
from foqs_lab.cluster import make_shards
from foqs_lab.crash.batch_history import Kept, Row, Seen
from foqs_lab.crash.batch_process import LEASE_MS
from foqs_lab.crash.batches import Check, run_batches
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer

MS = 1_000_000
"""In ns. The clocks of the tests below have no offset."""
PLAIN, FAILING, CANCELLED, EXPIRED = "30", "37", "38", "39"
"""Names of batches with both callbacks, by their kinds."""
ID, SUCCESS, END = 100, 900, 901


@pytest.mark.timeout(400)
def test_a_batch_ends_once(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 8, "batches")
    report = run_batches(shards, tmp_path, seed=1, batches=20, members=50, kills=4)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert report.kills["host"] == report.kills["consumer"] == 2, report
    for state in ("succeeded", "ended", "expired", "cancelled"):
        assert report.batches[state], f"{state}: {report}"


class World:
    """One batch with two members: what clients wrote of it, and what the databases hold. It is as it should be."""

    def __init__(self, name: str = PLAIN) -> None:
        self.lines: list[list[Any]] = [
            ["create", 0, MS, name, "ok", ID, ""],
            ["put", MS, 2 * MS, name, [[0, 0, "ok", 1], [1, 0, "ok", 2]]],
            ["close", 3 * MS, 4 * MS, name, "ok"],
            ["got", 5 * MS, 6 * MS, [[name, 0, 0, 1, 7], [name, 1, 0, 2, 7]]],
            ["ack", 10 * MS, [[1, 7], [2, 7]]],
            ["acked", 11 * MS, [[1, 7, "ok"], [2, 7, "ok"]]],
        ]
        self.kept = Kept()
        self.counts(members=2, completed=2)
        self.row = Row(ID, BatchState.SUCCEEDED, 5_000, 30, 0, SUCCESS, END)
        self.calls: list[list[Any]] = [[name, "success", SUCCESS, 30, {"foqs-batch": str(ID)}]]
        self.ends()

    def counts(self, **counts: int) -> None:
        self.kept.parts[ID] = self.kept.counted[ID] = Counts(**counts)

    def ends(self, **headers: str) -> None:
        """Deliver the callback of the end with headers that fit the row and the counts, but for `headers`."""
        counts = {name: value for name, value in self.kept.parts[ID]._asdict().items() if value}
        fit = {
            "foqs-batch": str(ID),
            "foqs-batch-state": BatchState(self.row.state).name,
            "foqs-batch-counts": json.dumps(counts),
            "foqs-batch-failed": ",".join(map(str, self.kept.dead.get(ID, ()))),
        }
        self.calls = [call for call in self.calls if call[1] != "end"]
        self.calls.append([self.lines[0][3], "end", END, 30, {**fit, **headers}])

    def lies(self) -> list[str]:
        seen = Seen()
        seen.take([*self.lines, ["called", 31 * MS, 32 * MS, self.calls]])
        if self.row.id:
            self.kept.rows[ID] = self.row
        return list(Check(seen, self.kept, 0.0).lies())


def test_a_good_run_has_no_lie() -> None:
    assert World().lies() == []


def _twice(world: World) -> None:
    world.calls.append([*world.calls[0][:2], 999, *world.calls[0][3:]])


def _lost(world: World) -> None:
    world.calls.pop(0)


def _not_stored(world: World) -> None:
    world.row = world.row._replace(success_id=0)
    world.calls.pop(0)


def _open(world: World) -> None:
    world.row = world.row._replace(ended_at_ms=0)


def _early(world: World) -> None:
    world.lines[4][1] = 33 * MS
    world.lines[5][1] = 34 * MS


def _before_an_ack(world: World) -> None:
    world.row = world.row._replace(ended_at_ms=4)


def _never_acked(world: World) -> None:
    world.lines[4:] = [["ack", 10 * MS, [[1, 7]]], ["acked", 11 * MS, [[1, 7, "ok"]]]]


def _refused_ack(world: World) -> None:
    world.lines[5][2][1][2] = "stale"


def _one_more(world: World) -> None:
    world.counts(members=3, completed=3)
    world.ends()


def _other_counts_on_shards(world: World) -> None:
    world.kept.counted[ID] = Counts(3, 3)


def _other_counts_in_header(world: World) -> None:
    world.ends(**{"foqs-batch-counts": '{"members":2,"completed":1}'})


def _other_state(world: World) -> None:
    world.row = world.row._replace(state=BatchState.ENDED)
    world.calls.pop(0)
    world.row = world.row._replace(success_id=0)
    world.ends()


def _refused_early(world: World) -> None:
    world.lines.append(["put", 12 * MS, 13 * MS, PLAIN, [[5, 0, "invalid", 0]]])


def _came_though_refused(world: World) -> None:
    world.lines[1][4][1][2:] = ["refused", 0]


def _after_its_ack(world: World) -> None:
    world.lines.append(["got", 15 * MS, 16 * MS, [[PLAIN, 0, 0, 1, 8]]])


def _two_items(world: World) -> None:
    world.lines[3][3][0][3] = 5


def _no_row(world: World) -> None:
    world.row = world.row._replace(id=0)


def _left(world: World) -> None:
    world.kept.waiting = [ID]


def _child_later(world: World) -> None:
    world.kept.rows[101] = Row(101, BatchState.SUCCEEDED, 5_000, 90, ID, 0, 0)
    world.lines.append(["create", 0, MS, f"{PLAIN}/1/1", "ok", 101, PLAIN])
    world.counts(members=3, completed=3)
    world.ends()


def _unknown_batch(world: World) -> None:
    world.kept.rows[101] = Row(101, BatchState.OPEN, 5_000, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_twice, "success callbacks are [900, 999]"),
        (_lost, "success callbacks are []"),
        (_not_stored, "success callback is 0"),
        (_open, "it is open"),
        (_early, "before the ack of its member"),
        (_before_an_ack, "before the ack of its member"),
        (_never_acked, "was stored and never acked"),
        (_refused_ack, "was stored and never acked"),
        (_one_more, "and its members Counts(members=2, completed=2"),
        (_other_counts_on_shards, "its shards counted"),
        (_other_counts_in_header, "its header has the counts"),
        (_other_state, "its state is ENDED and not SUCCEEDED"),
        (_refused_early, "it refused members 17 ms before its end"),
        (_came_though_refused, "was refused, and came"),
        (_after_its_ack, "came after its ack"),
        (_two_items, "is the items 1 and 5"),
        (_no_row, "it has no row"),
        (_left, "has rows of members that have not ended"),
        (_child_later, "it ended before the batch 101"),
        (_unknown_batch, "1 batches without a client"),
    ],
)
def test_each_lie_is_found(change: Callable[[World], None], wrong: str) -> None:
    world = World()
    change(world)
    lies = world.lies()
    assert any(wrong in lie for lie in lies), lies


def test_dead_letters_count_as_failed() -> None:
    world = World(FAILING)
    world.lines[4:] = [["nack", 10 * MS, [[1, 7]]], ["ack", 10 * MS, [[2, 7]]], ["acked", 11 * MS, [[2, 7, "ok"]]]]
    world.kept.dead = {ID: [1]}
    world.counts(members=2, completed=1, failed=1)
    world.row = world.row._replace(state=BatchState.ENDED, success_id=0)
    world.calls.clear()
    world.ends()
    assert world.lies() == []
    world.ends(**{"foqs-batch-failed": ""})
    assert any("failed members" in lie for lie in world.lies())


def test_a_cancelled_batch_may_have_members_that_never_came() -> None:
    world = World(CANCELLED)
    world.lines[1][4].append([2, 0, "unknown", 0])
    world.lines[2] = ["cancel", 3 * MS, 4 * MS, CANCELLED, "ok"]
    world.lines[3:] = []
    world.row = world.row._replace(state=BatchState.CANCELLED, success_id=0)
    world.calls.clear()
    for members, wrong in ((2, False), (3, False), (4, True), (1, True)):
        world.counts(members=members, cancelled=members)
        world.ends()
        assert bool(world.lies()) == wrong, world.lies()


def test_a_late_ack_of_a_cancelled_member_may_count_nothing() -> None:
    world = World(CANCELLED)
    world.lines[2] = ["cancel", 3 * MS, 4 * MS, CANCELLED, "ok"]
    world.row = world.row._replace(state=BatchState.CANCELLED, success_id=0)
    world.calls.clear()
    world.counts(members=2, completed=1, cancelled=1)
    world.ends()
    assert any("2 members were acked in time" in lie for lie in world.lies())
    late = (5 + LEASE_MS) * MS
    world.lines[4:] = [["ack", late, [[1, 7], [2, 7]]], ["acked", late + MS, [[1, 7, "ok"], [2, 7, "ok"]]]]
    assert world.lies() == []


def test_a_batch_expires_in_time() -> None:
    world = World(EXPIRED)
    world.lines[2:] = []
    world.row = world.row._replace(state=BatchState.EXPIRED, expires_at_ms=30, success_id=0)
    world.calls.clear()
    world.counts(members=2)
    world.ends()
    assert world.lies() == []
    world.row = world.row._replace(expires_at_ms=31)
    assert any("it expired 1 ms early" in lie for lie in world.lies())


def test_delays_are_of_batches_without_a_kill() -> None:
    world = World()
    seen = Seen()
    seen.take([*world.lines, ["called", 31 * MS, 32 * MS, world.calls]])
    check = Check(seen, world.kept, 0.0)
    assert check.delays_ms([]) == [21.0]
    assert check.delays_ms([(0, 12 * MS)]) == []
    assert check.delays_ms([(33 * MS, 40 * MS)]) == [21.0]
