"""Redrives in a simulated run, and what they may do, checked from the outside: replies and committed rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from foqs.engine.dead_letters import PageAsk, PageOutcome, RedrivePage
from foqs.errors import FoqsError
from foqs.policies.failures import FailureFilter
from foqs.rows import Batch, FailureCause, LaneRow
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import Record, broken, lane_of
from tests.sim.requests import TIMEOUTS_MS, Request

if TYPE_CHECKING:
    from tests.sim.clients import Clients


class Redrives:
    """`committed` counts the items that returned, by shard. It is never more than `at_most`, nor less than `at_least`,
    the sums of the replies; a page without a reply may have redriven all that it asked for. `deleted`: a delete or
    a late ack may have replaced a move that waited, and given it the outcome."""

    def __init__(self, records: dict[int, Record], checks: Counter[str]) -> None:
        self._checks = checks
        self.committed: Counter[int] = Counter()
        self.deleted: Counter[int] = Counter()
        self.at_least: Counter[int] = Counter()
        self._open: Counter[int] = Counter()  # pages without a reply
        self._ended_ms: dict[int, int] = {}
        self.at_most: Counter[int] = Counter()
        self._records = records

    def may_move(self, shard: int, since_ms: int) -> bool:
        """Whether a dead letter of the shard may have waited for its return at that time or later."""
        return self._open[shard] > 0 or self._ended_ms.get(shard, 0) >= since_ms

    def begin(self, ask: PageAsk) -> None:
        self._open[ask.shard] += 1
        self.at_most[ask.shard] += 0 if ask.dry_run else ask.most

    def replied(self, ask: PageAsk, outcome: PageOutcome | FoqsError, now_ms: int) -> None:
        """Check a reply and the sums."""
        self._open[ask.shard] -= 1
        self._ended_ms[ask.shard] = now_ms
        found = PageOutcome() if isinstance(outcome, FoqsError) else outcome
        if found.redriven + found.unknown > ask.most or sum(found.taken.values()) != found.redriven + found.unknown:
            broken(15, f"{ask} was answered with {found}")
        if ask.per_group and any(count > ask.per_group for count in found.taken.values()):
            broken(15, f"{ask} took more of a group: {found}")
        if not ask.dry_run:
            self.at_most[ask.shard] += found.redriven + found.unknown - ask.most
            self.at_least[ask.shard] += found.redriven
        self._check(ask.shard)

    def committing(
        self, shard: int, db: MemoryDatabase, batch: Batch, lanes: dict[int, LaneRow], now_ms: int
    ) -> set[int]:
        """A transaction is about to be applied. Return the items that it redrives, after a look at each."""
        new, gone = {row.id for row in batch.failure_new}, set(batch.failure_gone)
        ready = {row.id: row for row in batch.ready_new} if batch.moved else {}
        back = {row[0]: lanes[row[1]] for row in batch.moved if row[0] in db.failures and row[0] not in new}
        for item_id, lane in back.items():
            record = self._records[item_id]
            if item_id not in gone or ready[item_id].attempt or lane.topic.endswith(b".dlq"):
                broken(15, f"item {item_id} returns to {lane} with its failure or its attempts: {record}")
            if any(record.live(delivery, now_ms) for delivery in record.deliveries):
                broken(15, f"item {item_id} returns to {lane} while a consumer has it: {record}")
            record.place, record.first = (lane.ns.decode(), lane.topic.decode()), len(record.deliveries)
            if lane_of(lane) != record.spec.lane(record.place):
                broken(15, f"item {item_id} returns to {lane}, not to the tenant that it had: {record}")
        self.committed[shard] += len(back)
        self._checks["redriven"] += len(back)
        over = (*batch.item_gone, *(row.id for row in batch.ended_new))  # kept items have an ended row
        dead = [self._records[item_id] for item_id in over if item_id in db.failures]
        self.deleted[shard] += sum(bool(record.open_ops("delete", "ack")) for record in dead)
        self._check(shard, later=True)
        return set(back)

    def _check(self, shard: int, *, later: bool = False) -> None:
        low = 0 if later else self.at_least[shard] - self.deleted[shard]
        if not low <= self.committed[shard] <= self.at_most[shard]:
            broken(15, f"{self.committed[shard]} items returned, not {low} to {self.at_most[shard]}")


def redrive(clients: Clients) -> None:
    """Ask for a page of a redrive, if there are dead letters."""
    rng, sim = clients.rng, clients.sim
    dead = [(shard, db.lanes[row.lane]) for shard, db in sim.dbs.items() for row in db.failures.values()]
    if not dead:
        return
    shard, lane = rng.choice(dead)
    key = (lane.ns.decode(), lane.topic.decode())
    member, timeout_ms = clients.member_for(shard << 48 | 1), rng.choice(TIMEOUTS_MS)
    wanted = FailureFilter(cause=rng.choice([None, None, FailureCause.FAILED]))
    to_topic = rng.choice([None, None, "topic-0"])
    ask = PageAsk(
        key, shard, None, wanted, rng.choice([1, 2, 500]), rng.choice([0, 0, 1]), {}, to_topic, rng.random() < 0.1
    )
    request, redrives = Request(clients, member, f"redrive of {ask}", timeout_ms), sim.ledger.attempts.redrives
    redrives.begin(ask)

    def reply(outcome: PageOutcome | FoqsError) -> None:
        request.answered()
        sim.note("redriven", member.name, ask, outcome)
        redrives.replied(ask, outcome, sim.now_ms)

    RedrivePage(member.engine.state, ask, reply).begin(member.now_ms, member.now_ms + timeout_ms)
