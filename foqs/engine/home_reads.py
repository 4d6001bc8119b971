"""Reads of batches of items at their homes: of a new owner, of batches that memory does not know, and of old ones."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

from foqs.buffers.item_batches import (
    LOOK_MS,
    FindBatch,
    Home,
    Homes,
    Question,
    Reported,
    Turn,
    failed_ids,
    total,
)
from foqs.buffers.reads import Read, StoreReads
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine.batch_callbacks import SpecsRead
from foqs.engine.batch_homes import ENDED, RETRY_MS
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, Invalid, NotFound
from foqs.item_batch import NO_BATCH, BatchInfo, BatchPart, BatchRow

_LOAD_ROWS = 500
_REMOVE_ROWS = 100


def add_reads(shard: Shard, batch: ShardBatch, now_ms: int) -> None:
    """Add the reads that are due."""
    homes, reads = shard.queue.homes, list[Read]()
    if not homes.known and not homes.loading:
        homes.loading = True
        reads.append(LoadRead(0))
    if homes.specs:
        specs, homes.specs = homes.specs, {}
        reads.append(SpecsRead(specs))
    if homes.unknown and homes.known:
        unknown, homes.unknown = homes.unknown, []
        reads.append(RowsRead(unknown))
    if homes.look_ms <= now_ms and homes.known:
        homes.look_ms = now_ms + LOOK_MS
        reads.append(EndedRead(now_ms - shard.queue.batch_keep_ms))
    batch.reads = [*batch.reads, *reads]


@dataclass(slots=True, eq=False)
class LoadRead(Read):
    """The batches that have not ended, as a new owner finds them, with the reports on them."""

    after: int
    rows: list[BatchRow] = field(default_factory=list)
    parts: list[BatchPart] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.rows = store.live_batches(self.after, _LOAD_ROWS)
        self.parts = store.batch_parts([row.id for row in self.rows])
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        homes = shard.queue.homes
        for row in self.rows:
            homes.live[row.id] = home = Home(row)
            if homes.restored:
                home.unheard = set(shard.queue.links.all_shards())
            home.ask_ms = now_ms
            homes.at(min(row.expires_at_ms, now_ms), row.id)
            homes.at(row.expires_at_ms, row.id)
        for part in self.parts:
            homes.live[part.batch].parts[part.shard] = part
        homes.loading = False
        if len(self.rows) == _LOAD_ROWS:
            homes.loading = True
            shard.queue.members.reads.append(LoadRead(self.rows[-1].id))
        else:
            homes.known = True
        shard.queue.touch()

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.members.reads.append(self)


@dataclass(slots=True, eq=False)
class RowsRead(Read):
    """Batches that memory does not know: they have ended, or there are none."""

    asked: list[Reported | Turn | FindBatch]
    rows: list[BatchRow] = field(default_factory=list)
    parts: list[BatchPart] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        ids = {one.report.part.batch if isinstance(one, Reported) else one.batch for one in self.asked}
        self.rows = store.batch_rows(sorted(ids))
        finds = {one.batch for one in self.asked if isinstance(one, FindBatch)}
        self.parts = store.batch_parts([row.id for row in self.rows if row.id in finds])
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        rows, parts = {row.id: row for row in self.rows}, defaultdict[int, list[BatchPart]](list)
        for part in self.parts:
            parts[part.batch].append(part)
        homes = shard.queue.homes
        for one in self.asked:
            if isinstance(one, Reported):
                row, wanted = rows.get(one.report.part.batch), one.report.ns
                if row is not None and row.id in homes.live:  # created since
                    homes.reports.append(one)
                elif wanted is not None:
                    one.answer(Invalid(NO_BATCH if row is None or row.ns != wanted.encode() else ENDED))
                else:
                    one.answer(NotFound(NO_BATCH) if row is None else None)
                continue
            row = rows.get(one.batch)
            if row is None or (one.ns is not None and row.ns != one.ns.encode()):
                one.reply(NotFound(NO_BATCH))
            elif isinstance(one, Turn):
                one.reply(None)
            else:
                own = parts[row.id]
                one.reply(BatchInfo(row._replace(on_success=None, on_end=None), total(own), failed_ids(own)))

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.homes.unknown += self.asked

    def refuse(self, error: FoqsError) -> None:
        asked, self.asked = self.asked, []
        for one in asked:
            if isinstance(one, Reported):
                one.answer(error)
            else:
                one.reply(error)


@dataclass(slots=True, eq=False)
class EndedRead(Read):
    """Batches that ended long ago. Their shards forget them, then the home does."""

    before_ms: int
    found: list[int] = field(default_factory=list)
    parts: list[BatchPart] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.ended_batches(self.before_ms, _REMOVE_ROWS)
        self.parts = store.batch_parts(self.found)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        homes, asked = shard.queue.homes, defaultdict[int, list[Question]](list)
        for batch in self.found:
            homes.removals.setdefault(batch, {part.shard for part in self.parts if part.batch == batch})
            for number in homes.removals[batch]:
                asked[number].append(Question(batch, forget=True))
            if not homes.removals[batch] and batch not in homes.removed:
                homes.removed.append(batch)
        for number, questions in asked.items():
            shard.queue.links.ask_members(number, questions, partial(_forgotten, shard, homes, number))
        if len(self.found) == _REMOVE_ROWS:
            homes.look_ms = min(homes.look_ms, now_ms + RETRY_MS)

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.homes.look_ms = now_ms


def _forgotten(shard: Shard, homes: Homes, number: int, batches: list[int]) -> None:
    if shard.queue.homes is not homes:
        return
    for batch in batches:
        left = homes.removals.get(batch)
        if left is not None and number in left:
            left.discard(number)
            if not left:
                homes.removed.append(batch)
    shard.queue.touch()
