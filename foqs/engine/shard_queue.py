"""The work that waits for the database of one shard: inserts, changes, leases to write, look-ups, reads and scans.

`batch_build` makes a shard batch of it, `batch_apply` applies its result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foqs.buffers.checkpoint import NEVER_MS, Checkpoint
from foqs.buffers.held_keys import HeldKeys, TellKeys
from foqs.buffers.item_batches import BatchLinks, Creation, Homes
from foqs.buffers.kept import KeptItems
from foqs.buffers.members import Join, Members
from foqs.buffers.pending_dedup import DedupKeys
from foqs.buffers.pending_progress import PendingProgress
from foqs.buffers.reads import DeadRead, KeyRead, ListRead, Read
from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.config.schema import HostSection, LimitsSection
from foqs.engine.asked_scripts import AskedScripts
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import topic_key
from foqs.item import Change, Item, Phase, Place
from foqs.opened import Opened
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, Found, KeyRows

Look = Callable[[Item | None, Found | None, FoqsError | None], None]
"""Called with the item that an id names, and its rows; None twice where there is none, or the error of the look-up."""


class Looks(dict[int, list[Look]]):
    """The look-ups by id: several callers may ask for one item. `count` is the number of look-ups.

    A dict, because each batch checks whether it is empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, item_id: int, look: Look) -> None:
        self.setdefault(item_id, []).append(look)
        self.count += 1

    def take(self, item_id: int) -> list[Look]:
        waiting = self.pop(item_id)
        self.count -= len(waiting)
        return waiting


class ShardQueue:
    """`touch` is called when a change waits that no caller of this shard asked for."""

    def __init__(self, config: HostSection) -> None:
        self.config = config
        self.touch: Callable[[], None] = lambda: None
        self.tell: TellKeys
        self.links: BatchLinks
        self.now_ms: Callable[[], int]
        self.max_batch_bytes = 0
        self.dedup_window_ms = self.batch_keep_ms = self.payload_bytes = 0
        self.forget()

    def forget(self) -> None:
        """Begin with no work."""
        self.next_lane = 1
        self.next_number = 1
        self.chunks: deque[Chunk] = deque()
        self.chunk_rows = 0
        self.returned: list[Chunk] = []
        self.changes: deque[Change] = deque()  # that wait for the next transaction
        self.index_rows: deque[Change] = deque()  # of unindexed items that left memory; no caller waits
        self.unwritten: deque[tuple[int, Item, int]] = deque()
        self.progress = PendingProgress()
        self.timers = Checkpoint(0)
        self.ttls = Checkpoint(0)
        self.keys = DedupKeys()
        self.held = HeldKeys()
        self.batching = False  # it may have work of batches: without it, no request looks for any
        self.members = Members()
        self.homes = Homes()
        self.kept = KeptItems()
        self.looks = Looks()
        self.asked = AskedScripts()
        self.lists: list[ListRead] = []
        self.dead_reads: deque[DeadRead | KeyRead] = deque()
        self.pages_wanted: dict[Lane[Item], None] = {}
        self.bodies_wanted: dict[int, Item] = {}
        self.in_flight: ShardBatch | None = None
        self.unsettled: ShardBatch | None = None
        self.rows_changed = 0

    def begin(self, opened: Opened, next_lane: int, max_batch_bytes: int, now_ms: int) -> None:
        """Take work of a shard that the store has opened."""
        self.next_lane, self.next_number = next_lane, opened.next_number
        self.max_batch_bytes = max_batch_bytes
        self.timers = Checkpoint(min(opened.due_from_ms, now_ms))
        self.ttls = Checkpoint(min(opened.expiry_from_ms, now_ms))
        self.keys = DedupKeys(min(opened.dedup_from_ms, now_ms), opened.slots)
        self.held = HeldKeys(0 if opened.holding else NEVER_MS)
        self.batching = opened.batches
        self.members = Members(0 if opened.batches else NEVER_MS)
        self.homes = Homes(known=not opened.batches, restored=opened.behind is not None)
        self.kept = KeptItems(min(opened.ended_from_ms, now_ms), opened.ended)

    def configure(self, config: HostSection) -> None:
        self.config = config

    def configure_limits(self, limits: LimitsSection) -> None:
        self.dedup_window_ms, self.batch_keep_ms = limits.dedup_window_ms, limits.batch_keep_ms
        self.payload_bytes = limits.payload_bytes

    def connect(
        self, touch: Callable[[], None], tell: TellKeys, links: BatchLinks, now_ms: Callable[[], int]
    ) -> None:  # fmt: skip
        self.touch, self.tell, self.links, self.now_ms = touch, tell, links, now_ms

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        for batch in (self.unsettled, self.in_flight):
            if batch is not None:
                batch.begun_ms += by_ms
        for _, item, lease in self.unwritten:
            if item.lease == lease and item.phase is Phase.LEASED and item.place is Place.READY and not item.busy:
                item.lease_expires_at_ms += by_ms
        for scan in (self.timers, self.ttls, self.keys.scan, self.kept.scan):
            scan.shift(by_ms)
        self.progress.shift(by_ms)
        self.held.shift(by_ms)
        self.members.shift(by_ms)
        self.homes.shift(by_ms)
        self.unwritten = deque((given_ms + by_ms, item, lease) for given_ms, item, lease in self.unwritten)

    # ------------------------------------------------------------------------------------- how much waits

    @property
    def full(self) -> bool:
        return self.chunk_rows + len(self.changes) + self.looks.count >= self.config.pending_rows

    def key_rows(self, transaction: Batch) -> KeyRows:
        """Return what the transaction changes about held keys."""
        if transaction.keys is None:
            transaction.keys = KeyRows(self.keys.held.bits)
        return transaction.keys

    @property
    def keys_wait(self) -> bool:
        """Return True if something about keys waits for the next transaction."""
        keys, held = self.keys, self.held
        return bool(
            keys.gone is not None or keys.wanted is not None or keys.copies or keys.gives or keys.redrives
            or held.claims or held.freed or keys.marks
        )  # fmt: skip

    def use_batches(self) -> None:
        """From now on, look for work of batches of items."""
        self.batching = True

    @property
    def batches_ms(self) -> int:
        """When batches of items have work for this shard's database; in the past means now."""
        return min(self.members.next_ms, self.homes.next_ms)

    @property
    def idle(self) -> bool:
        """Return True if nothing waits to be written. A drain waits for this."""
        busy = (
            self.in_flight or self.unsettled or self.chunks or self.changes or self.progress or self.keys.pending
            or self.members.joins
        )  # fmt: skip
        return not busy and self.oldest_unwritten_ms() is None

    def oldest_unwritten_ms(self) -> int | None:
        unwritten = self.unwritten
        while unwritten:
            given_ms, item, lease = unwritten[0]
            if item.lease == lease and item.phase is Phase.LEASED and item.place is Place.READY:
                return given_ms
            unwritten.popleft()
        return None

    # ------------------------------------------------------------------------------------- inserts and changes

    def add(self, chunk: Chunk) -> None:
        """Let `chunk` wait for a transaction: first for the homes of its batches, if it has members."""
        self.chunk_rows += len(chunk.items)
        if (chunk.members and chunk.joined is not self.members) or (chunk.ordered and self._joining(chunk)):
            chunk.joined = None  # a shard that had it before reports without it
            self.batching = True
            self.members.join(chunk, chunk.batches(), topic_key(chunk.keys[0])[0], self.now_ms())
        else:
            self.chunks.append(chunk)

    def _joining(self, chunk: Chunk) -> bool:
        """Return True if an earlier part of a request with order keys waits for the home of a batch."""
        waiting = [join.what for join in self.members.joins]
        return any(isinstance(one, Chunk) and one.ordered and one.request is chunk.request for one in waiting)

    def took(self, batch: ShardBatch) -> None:
        """Note that chunks were taken out for a batch that is not sent: all had timed out, or found no room."""
        self.chunk_rows -= batch.taken_rows

    def new_lane_number(self) -> int:
        number = self.next_lane
        self.next_lane += 1
        return number

    def take_chunks(self, *, keyed: bool = False) -> list[Chunk]:
        """Take out the chunks that wait; `keyed`: only chunks that no other shard may store."""
        waiting = [*self.chunks, *self.members.take_chunks()]
        self.chunks, self.chunk_rows = deque(), 0
        for chunk in waiting:
            if keyed and not chunk.bound:
                self.add(chunk)
        return [chunk for chunk in waiting if not keyed or chunk.bound]

    def take_behind(self, refused: Chunk) -> list[Chunk]:
        """Take out the chunks that wait with items of the same request with order keys."""
        behind = [chunk for chunk in self.chunks if chunk.ordered and chunk.request is refused.request]
        for chunk in behind:
            self.chunks.remove(chunk)
        behind += self.members.take_chunks(refused)
        self.chunk_rows -= sum(len(chunk.items) for chunk in behind)
        return behind

    def go_on(self) -> None:
        """Give members that wait for no home any longer to the database: the parts of a request in their order, if
        their items have order keys."""
        waiting, blocked = list[Join](), set[int]()
        for join in self.members.joins:
            what = join.what
            if isinstance(what, Creation):
                if join.waits:
                    waiting.append(join)
                else:
                    self.homes.creations.append(what)
            elif what.request.done or not what.items:
                self.chunk_rows -= len(what.items)
            elif join.waits or id(what.request) in blocked:
                waiting.append(join)
                if what.ordered:
                    blocked.add(id(what.request))
            else:
                what.joined = self.members
                self.chunks.append(what)
        self.members.joins = waiting
        self.touch()

    def refuse_members(self, join: Join, batch: int, error: FoqsError) -> None:
        """Refuse the members of a batch. With order keys, an item that may be tried again takes the later ones of its
        request with it: they must not overtake it."""
        what = join.what
        if batch not in join.waits:  # another report on it was answered before
            return
        join.waits.discard(batch)
        if isinstance(what, Creation):
            self.members.joins.remove(join)
            self.homes.created -= 1
            what.reply(error)
            return
        whole = what.ordered and not isinstance(error, Invalid)
        gone = [at for at, item in enumerate(what.items) if whole or item.batch == batch]
        kept = [at for at, item in enumerate(what.items) if not (whole or item.batch == batch)]
        self.chunk_rows -= len(gone)
        what.request.refused([what.indices[at] for at in gone], error)
        what.keep(kept)
        for behind in self.take_behind(what) if whole else ():
            behind.request.refused(behind.indices, error)

    def take_returned(self) -> list[Chunk]:
        """Take out the chunks that the last batch did not store."""
        returned, self.returned = self.returned, []
        return returned

    def requeue_returned(self) -> None:
        """Put the chunks that the last batch did not store before the chunks that wait."""
        returned = self.take_returned()
        self.chunks.extendleft(reversed(returned))
        self.chunk_rows += sum(len(chunk.items) for chunk in returned)

    def put_aside(self, waits: Callable[[Change], bool]) -> list[Change]:
        """Take out the changes that `waits`; the caller adds them again."""
        aside: list[Change] = []
        changes, self.changes = self.changes, deque()
        for change in changes:
            if change.item.change is change:
                (aside if waits(change) else self.changes).append(change)
        return aside

    def drop_superseded(self) -> None:
        """Drop changes that were withdrawn or replaced. With enough of them, the shard would count as full."""
        self.changes = deque(change for change in self.changes if change.item.change is change)

    # ------------------------------------------------------------------------------------- reads

    def drop_reads(self, done: Callable[..., None]) -> None:
        """Drop the reads that would call `done`. Without a connection, they and all later ones would wait."""
        self.lists = [read for read in self.lists if read.done != done]
        self.dead_reads = deque([read for read in self.dead_reads if read.done != done])

    def take_lists(self) -> list[Read]:
        """Take out the lists and the reads of dead letters."""
        reads: list[Read] = [*self.lists, *self.dead_reads]
        self.lists, self.dead_reads = [], deque()
        return reads

    def take_bodies_wanted(self) -> dict[int, Item]:
        wanted, self.bodies_wanted = self.bodies_wanted, {}
        return wanted

    def take_pages_wanted(self) -> dict[Lane[Item], None]:
        wanted, self.pages_wanted = self.pages_wanted, {}
        return wanted

    def want_pages_first(self, lanes: dict[Lane[Item], None]) -> None:
        """Read pages of `lanes` before the pages that are wanted already."""
        self.pages_wanted = lanes | self.pages_wanted

    # ------------------------------------------------------------------------------------- batches

    def send(self, batch: ShardBatch, keys_ms: int, now_ms: int) -> ShardBatch:
        """Begin a batch. Deduplication keys expire by `keys_ms`."""
        batch.begun_ms, batch.keys_ms = now_ms, keys_ms
        self.in_flight = batch
        self.chunk_rows -= batch.taken_rows
        if batch.transaction is not None:
            self.next_number = batch.transaction.next_number
        return batch

    def ended(self, batch: ShardBatch, rows: int) -> None:
        """Note that the result of `batch` has come: it changed `rows`."""
        assert self.in_flight is batch, "one batch at a time"
        self.in_flight = None
        self.rows_changed += rows

    def outcome_unknown(self, batch: ShardBatch) -> None:
        """Store none of the items of `batch` again until its outcome is known."""
        self.unsettled, self.in_flight = batch, None

    def take_unsettled(self) -> ShardBatch | None:
        batch, self.unsettled = self.unsettled, None
        return batch


def leave_scan(change: Change, now_ms: int) -> None:
    """Report to the scan that found the row that `change` will not move it, so the row is scanned again."""
    if change.scan is not None:
        change.scan.left(change.scan_ms)
        scan_done(change, now_ms)


def scan_done(change: Change, now_ms: int) -> None:
    scan, change.scan = change.scan, None
    if scan is not None:
        scan.outstanding -= 1
        if not scan.outstanding:
            scan.finish(now_ms)
