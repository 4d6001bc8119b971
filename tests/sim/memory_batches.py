"""The tables of batches of items in memory: members and their counts on a shard, and the batches at their home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from foqs.item_batch import MOST_FAILED_IDS, BatchPart, BatchRow, Counts, HowEnded, MemberRows, ShardCounts


class Member(NamedTuple):
    batch: int
    dead: bool


class Count(NamedTuple):
    """A row of `batch_count`."""

    counts: Counts = Counts()
    changes: int = 0
    unsent: bool = True


class MemoryBatches:
    """`rule` raises for a transaction that no correct owner sends."""

    def __init__(self, rule: Callable[..., None]) -> None:
        self._rule = rule
        self.members: dict[int, Member] = {}
        self.counts: dict[int, Count] = {}
        self.rows: dict[int, BatchRow] = {}
        self.parts: dict[tuple[int, int], BatchPart] = {}

    @property
    def busy(self) -> bool:
        return bool(self.members or self.counts or self.rows or self.parts)

    def knows(self, batch: int) -> bool:
        return batch in self.counts or any(one.batch == batch for one in self.members.values())

    def left(self) -> list[object]:
        """Return the first rows of each table."""
        return [sorted(table.items())[:3] for table in (self.members, self.counts, self.rows, self.parts)]

    def __bool__(self) -> bool:
        return bool(self.counts or self.rows)

    def apply(self, rows: MemberRows) -> None:
        for created in rows.created:
            self._rule(created.id not in self.rows, "batch {} is created twice", created)
            self.rows[created.id] = created
        for item_id, batch in rows.new:
            self._rule(item_id not in self.members, "member {} is stored twice", item_id)
            self.members[item_id] = Member(batch, False)
        for batch, new in Counter(batch for _, batch in rows.new).items():
            self._add(batch, Counts(members=new))
        self._count(HowEnded.FAILED, rows.redriven, dead=True)
        self._count(HowEnded.FAILED, rows.failed, dead=False)
        for how, ids in rows.ended.items():
            self._rule(how != HowEnded.FAILED, "members {} fail and leave", ids)
            for item_id in self._count(how, ids, dead=False):
                del self.members[item_id]
        for batch, changes in rows.sent:
            count = self.counts.get(batch)
            if count is not None and count.changes == changes:
                self.counts[batch] = count._replace(unsent=False)
        for item_id in rows.left:
            self.members.pop(item_id, None)
        for batch in rows.forgotten:
            self.counts.pop(batch, None)
        self._home(rows)

    def _home(self, rows: MemberRows) -> None:
        for batch, state in rows.states:
            row = self.rows.get(batch)
            if row is not None and not row.ended_at_ms:
                self.rows[batch] = row._replace(state=state)
        for part in rows.parts:
            before = self.parts.get((part.batch, part.shard))
            self._rule(
                before is None or (part.epoch, part.serial) > (before.epoch, before.serial) or part == before,
                "report {} is older than {}",
                part,
                before,
            )
            self.parts[part.batch, part.shard] = part
        for end in rows.ends:
            row = self.rows.get(end.batch)
            live = row is not None and not row.ended_at_ms
            self._rule(live or not (end.success_id or end.end_id), "batch {} ends again by {}", row, end)
            if row is not None and live:
                self.rows[end.batch] = row._replace(
                    state=end.state, ended_at_ms=end.ended_at_ms, success_id=end.success_id, end_id=end.end_id
                )
        for batch in rows.removed:
            self.rows.pop(batch, None)
            self.parts = {key: part for key, part in self.parts.items() if key[0] != batch}

    def _count(self, how: int, ids: Iterable[int], *, dead: bool) -> list[int]:
        """Count the members that are `dead`, or that are not, and make them the other. Return them."""
        counted = [item_id for item_id in ids if (one := self.members.get(item_id)) is not None and one.dead is dead]
        for batch, count in Counter(self.members[item_id].batch for item_id in counted).items():
            if batch in self.counts:
                change = -count if dead else count
                self._add(batch, Counts(*(change if at == how else 0 for at in range(len(Counts._fields)))))
        self.members.update((item_id, self.members[item_id]._replace(dead=not dead)) for item_id in counted)
        return counted

    def _add(self, batch: int, counts: Counts) -> None:
        before = self.counts.get(batch, Count())
        self.counts[batch] = Count(before.counts.plus(counts), before.changes + 1)

    def shard_counts(self, batches: Iterable[int]) -> list[ShardCounts]:
        found = []
        for batch in batches:
            if (count := self.counts.get(batch)) is not None:
                failed = sorted(item_id for item_id, member in self.members.items() if member == (batch, True))
                ids = tuple(failed[:MOST_FAILED_IDS]) if count.counts.failed else ()
                found.append(ShardCounts(batch, count.counts, count.changes, ids))
        return found

    def members_of(self, batch: int, after: tuple[bool, int], limit: int) -> list[tuple[bool, int]]:
        mine = sorted((one.dead, item_id) for item_id, one in self.members.items() if one.batch == batch)
        return [one for one in mine if one > after][:limit]
