"""Requests of a simulated run, and those that only look: at an item, at a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foqs.engine import item_ops
from foqs.engine.calls import LookCall
from foqs.engine.changing import Changing
from foqs.engine.listing import Listed, Listing, Search
from foqs.errors import Code, FoqsError
from foqs.ids import shard_of
from foqs.item import Item, Phase, Place
from foqs.item_filter import ItemFilter
from foqs.rows import Found, ProgressRow
from tests.sim.records import Op, broken

if TYPE_CHECKING:
    from tests.sim.clients import Clients
    from tests.sim.member import Member

TIMEOUTS_MS = (50, 1_000, 30_000)
_SLACK_MS = 20


class Request:
    """One open request: answered once, in time."""

    def __init__(self, clients: Clients, member: Member, what: str, within_ms: int) -> None:
        self.clients, self.member, self.what = clients, member, what
        self.due = clients.sim.time + within_ms + _SLACK_MS
        self.answers = 0
        clients.open[self] = None

    def answered(self) -> None:
        self.answers += 1
        if self.answers > 1:
            broken(8, f"{self.what} was answered {self.answers} times")
        if not self.member.alive:
            broken(8, f"{self.what} was answered by a dead host")
        if self.clients.sim.time > self.due:
            broken(8, f"{self.what} was answered {self.clients.sim.time - self.due} ms too late")
        self.clients.open.pop(self)


def list_topic(clients: Clients) -> None:
    rng = clients.rng
    key, limit, member = rng.choice(clients.sim.profile.topics), rng.choice([1, 5, 100]), clients.any_member()
    timeout_ms = rng.choice(TIMEOUTS_MS)
    request = Request(clients, member, f"list of {key}", timeout_ms)

    def reply(items: list[Listed], cursor: str | None) -> None:
        request.answered()
        if len(items) > limit:
            broken(8, f"a list of {limit} of {key} gave {len(items)} items")
        if search is not None and (search.looked_at > 20 or any(item.body.priority < 0 for item in items)):
            broken(8, f"a search of {key} looked at {search.looked_at} items, and gave {len(items)}")

    def fail(error: FoqsError) -> None:
        request.answered()

    states = [0, 1, 2, 3, 4, 5] if clients.sim.profile.awaited else [0, 1, 2, 3]
    search = Search(ItemFilter(min_priority=0), 20, member.now_ms + timeout_ms // 2) if limit == 5 else None
    state = member.engine.state
    listing = Listing(state, key, rng.choice(states), limit, 10_000, None, reply, fail, search=search)
    member.listings.append(listing)
    member.engine.list(listing, member.now_ms, timeout_ms)


def look_at(clients: Clients, item_id: int) -> None:
    member, db = clients.member_for(item_id), clients.sim.dbs[shard_of(item_id)]
    timeout_ms = clients.rng.choice(TIMEOUTS_MS)
    request = Request(clients, member, f"look at {item_id}", timeout_ms)

    def reply(item: Item | None, found: Found | None, error: FoqsError | None) -> None:
        request.answered()
        if error is not None:
            if error.code not in (Code.UNAVAILABLE, Code.OVERLOADED):
                broken(8, f"a look was answered {error!r}")
        elif not member.current(shard_of(item_id)):
            pass
        elif found is not None and found.ended is not None:
            if (found.ended, found.stored) != (db.ended.get(item_id), db.results.get(item_id)):
                broken(1, f"a look at {item_id} found {found}, the database has {db.ended.get(item_id)}")
        elif item_id in db.ended and db.ended[item_id].until_ms <= member.now_ms:
            pass  # it is removed soon
        elif (item is None) != (item_id not in db.items):
            broken(1, f"a look at {item_id} found {item} but the database has {db.items.get(item_id)}")
        elif item is not None:
            delayed = item.phase is not Phase.LEASED and item.place is Place.TIMER
            row = db.timer.get(item_id)
            stored = Found(db.items[item_id], None, None, failure=db.failures.get(item_id))
            stored = stored.with_progress(db.progress.get(item_id))
            if found is None or (found.body, found.failure, found.progress) != (
                stored[0],
                stored.failure,
                stored.progress,
            ):
                broken(1, f"a look at {item_id} found {found}, the database has {stored}")
            if delayed != (row is not None and not row.lease):
                broken(1, f"a look at {item_id} found {item} {found}, the database has {row}")

    member.engine.look(item_id, LookCall(reply), member.now_ms, timeout_ms)


def host_op(op: Op) -> item_ops.Op:
    if op.kind == "ack":
        return item_ops.ack(op.token, op.result)
    if op.kind == "nack":
        return item_ops.nack(op.token, op.delay_ms, op.metadata, counted=op.counted)
    if op.kind == "fail":
        return item_ops.fail(op.token, op.delay_ms, op.metadata, f"it broke {op.id}")
    if op.kind == "reject":
        return item_ops.reject(op.token, "never")
    if op.kind == "release":
        return item_ops.release(op.token)
    if op.kind == "extend":
        given = None if op.checkpoint is None else ProgressRow(op.id, op.checkpoint)
        return item_ops.extend(op.token, op.lease_ms, None, given, durable=op.durable)
    if op.kind == "change":
        return Changing(op.priority, op.at_ms)
    if op.body is not None:
        return item_ops.replace(op.body, op.topic)
    return item_ops.cancel(op.digest, leased=op.leased) if op.digest else item_ops.delete
