"""A shard in MySQL, MariaDB or SQLite: transactions behind the fence, and reads.

Never in here: what to write, and when. A transaction is BEGIN, the fence, the batch and COMMIT. A short one is one
packet, which saves a trip; COMMIT of a longer one has a packet of its own. A statement that fails ends its packet, so
COMMIT runs only after the fence and all writes.

Settling takes the lock and reads `seq` on a new connection. If the server has begun the transaction, that read waits
for its end. If it begins the packet later, the fence ends it: the row names the new connection, the packet the old.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import structlog

from foqs.ids import Mark, Marks
from foqs.item_batch import BatchPart, BatchRow, ShardCounts
from foqs.item_filter import ItemFacts
from foqs.opened import Opened
from foqs.order import InOrder, OrderHome
from foqs.policies.failures import FailureFilter
from foqs.policies.settings import Change, Settings
from foqs.rows import (
    Batch,
    Body,
    DeadPage,
    DedupRow,
    DedupScan,
    DueRow,
    EndedRow,
    ExpiringRow,
    FailureGroups,
    FailurePosition,
    FailureRow,
    Found,
    HeldKey,
    Key,
    LastFailure,
    ProgressRow,
    ReadyRow,
    Scan,
    TimerRow,
)
from foqs.store import reads, server, settings
from foqs.store.batch_reads import BatchReads
from foqs.store.compound import CompoundTransaction
from foqs.store.dialect import dialect_of
from foqs.store.link import PACKET_BYTES, Database, Link, Seen, look_at
from foqs.store.locks import Identity, Lock, lock_of
from foqs.store.opening import read_opened
from foqs.store.ownership import (
    give_up_epoch,
    identity_of,
    read_shard_row,
    refuse_foreign,
    take_again,
    take_epoch,
)
from foqs.store.packets import COM_QUERY, command_head
from foqs.store.protocol import (
    CommitUnknown,
    Confirmation,
    Fenced,
    RowRejected,
    ShardRefused,
    StoreBusy,
    StoreDenied,
    StoreDown,
    StoreEnded,
    StoreError,
    explained,
)
from foqs.store.statements import ANOTHER_OWNER, COMMIT_TEXT, Plan, planner_of
from foqs.store.transaction import TEXT_OF_ITEM_BYTES, Loss, State, Transaction, end_of, in_binary, packets_of

log = structlog.get_logger("foqs.store")
MAX_BATCH_BYTES = 8 << 20
_PACKET_SLACK_BYTES = 1024
_COUNT_TIMEOUT_S = 120.0
_payload = attrgetter("payload")
Answer = TypeVar("Answer")


class SqlStore:
    """A `ShardStore` on one connection. `url` is SQLAlchemy's; `shard` is the number that ids carry.

    `connect_timeout_s` and `io_timeout_s` bound how long a database that hangs can hold up a call (the latter holds
    for each answer of a server; SQLite waits 5 s for locks at most). `mismatches` counts rows that a write should
    have matched and did not: the host's memory and the database disagree. `binary_inserts`: transactions of `begin`
    send new items, and small transactions as a whole, as parameters of prepared statements where that is cheaper.
    """

    def __init__(
        self,
        url: str,
        *,
        shard: int,
        connect_timeout_s: float = 3.0,
        io_timeout_s: float = 10.0,
        binary_inserts: bool = False,
    ) -> None:
        self._url = url
        self._shard = shard
        self._connect_timeout_s = connect_timeout_s
        self.io_timeout_s = io_timeout_s
        self._database = Database(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s)
        self._dialect = self._database.dialect
        self._errors = self._database.seam_errors
        self._lock: Lock = lock_of(self._database, shard)
        self._claim = Identity(self._database, shard)
        self._identity = ""
        self._link: Link | None = None
        self._own_connections: deque[int] = deque(maxlen=16)
        self._server = b""
        self._planner = planner_of(self._dialect, PACKET_BYTES, PACKET_BYTES)
        self._binary_inserts = self._compounds = binary_inserts
        self._reads: BatchReads | None = None
        self._known: dict[tuple[int | None, ...], bytes] = {}
        self._epoch = 0
        self._seq = 0
        self._next_number = 1
        self._unsettled = False
        self._fenced = ""
        self.mismatches = 0

    @property
    def max_batch_bytes(self) -> int:
        return MAX_BATCH_BYTES

    def __repr__(self) -> str:
        state = "open" if self._link is not None else "fenced" if self._fenced else "not connected"
        return f"SqlStore(shard {self._shard}, {self._dialect.name}, {state}, epoch {self._epoch}, seq {self._seq})"

    # ------------------------------------------------------------------------------------------ ownership

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0, marks: Marks | None = None) -> Opened:
        if self._link is not None:
            raise RuntimeError("the store is open")
        self._fenced, self._unsettled = "", False
        try:
            self._database.refuse_missing()
            link, facts, known = self._connect()
            refuse_foreign(known, self._shard)
            seized = self._take_lock(link, take_over=take_over)
            self._claim.claim(link, identity_of(link).hex(), facts.identity)
            taken = take_epoch(link, self._dialect, owner, facts.identity, self._shard, epoch_above, marks)
            row, start, self._identity = taken.row, taken.start, taken.identity
            self._claim.claim(link, self._identity, facts.identity)
            self._epoch, self._seq, self._next_number = start.epoch, row.seq, start.next_number
            may_live = seized or not self._lock.free_when_dead
            # Counting a long backlog takes longer than any other call may.
            database = Database(self._url, connect_timeout_s=self._connect_timeout_s, io_timeout_s=_COUNT_TIMEOUT_S)
            warnings = [one.found for one in facts.unsafe]
            with closing(Link(database)) as reader:
                replaced = may_live and not row.closed
                opened = read_opened(reader, self._dialect, row, start, warnings, replaced=replaced, tail=taken.tail)
            server = facts.identity or f"file:{self._database.file}".encode()
            opened = replace(opened, identity=taken.identity, seq=row.seq, server=server)
            if not start.behind:
                return opened
            mark = taken.mark or Mark(row.epoch, row.next_number, row.next_number, row.seq)
            return replace(opened, behind=mark, leases_ended=taken.leases_ended)
        except self._errors.error as error:
            self.close()
            raise self._errors.translate(error) from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> tuple[Link, server.Facts, Any]:
        """Return the connection, the server's facts, and the shard's row, None if it is missing."""
        link = self._link = Link(self._database)
        facts = server.facts(link.connection)
        server.refuse_old(facts.version)
        if facts.read_only:
            raise self._errors.read_only()
        if facts.identity != self._server:  # connections of another server have numbers of their own
            self._own_connections.clear()
            self._server = facts.identity
        row = read_shard_row(link)
        self._dialect = dialect_of(facts.version.product)
        reading = self._reads = BatchReads(link, self._dialect)
        self._own_connections.append(link.id)
        max_statement_bytes = facts.max_packet_bytes - _PACKET_SLACK_BYTES
        link.packet_bytes = min(PACKET_BYTES, max_statement_bytes)
        self._planner = planner_of(self._dialect, max_statement_bytes, link.packet_bytes)
        if self._binary_inserts and self._dialect.prepared_inserts:
            link.prepare_inserts()
            if link.inserts is not None and self._compounds:
                link.prepare_compound()
        if self._database.reads_in_python:
            raise_bound, reading.packed_bytes = reads.packed_set_up(facts.max_packet_bytes)
            link.execute(raise_bound)
        return link, facts, row

    def _take_lock(self, link: Link, *, take_over: bool) -> bool:
        """Return whether another connection held it until now."""
        if self._lock.take(link):
            return False
        if not take_over:
            raise ShardRefused("another host has the shard", held=True)
        if not self._lock.seize(link):
            raise ShardRefused("killed the owner's connection, but its lock is still held", held=True)
        return True

    def reconnect(self) -> bool:
        if self._fenced:
            raise Fenced(self._fenced)
        if not self._epoch:
            raise StoreDown("the store was never opened")
        self._drop()
        try:
            link, facts, _ = self._connect()
            seq = take_again(self._lock, link, self._dialect, self._epoch, self._own_connections)
            self._claim.claim(link, self._identity, facts.identity)
        except Fenced as fenced:
            raise self._fence(str(fenced)) from fenced
        except self._errors.error as error:
            raise self._lost(error) from error
        except ShardRefused as refused:
            raise self._lost(refused) from refused
        except BaseException:
            self._drop()
            raise
        return self._settle(seq)

    def use_url(self, url: str) -> None:
        """Make further connections with a URL that leads to the same database as the same account. May be called from
        any thread, while another one uses the store. Raises ShardRefused for a URL that cannot be used."""
        database = Database(url, connect_timeout_s=self._connect_timeout_s, io_timeout_s=self.io_timeout_s)
        self._url, self._database = url, database

    def waits_in_vain(self) -> bool:
        """Ask the server, from any thread, if the call in progress on another thread gets no reply.

        That is so where the server waits for the next statement, and where it takes no connection.
        """
        link = self._link
        if link is None or self._database.is_file:
            return False
        seen = look_at(
            self._url, link.id, connect_timeout_s=self._connect_timeout_s, io_timeout_s=self._connect_timeout_s
        )
        return seen is not Seen.WORKS

    def cut(self) -> None:
        """End the connection, from any thread: a call in progress raises what a lost connection raises."""
        if (link := self._link) is not None:
            link.shut_down()

    def _settle(self, seq: int) -> bool:
        committed = self._unsettled and seq == self._seq + 1
        if seq != self._seq and not committed:
            raise self._fence("the shard's row is not what this owner wrote")
        self._unsettled = False
        self._seq = seq
        return committed

    def confirm(self) -> Confirmation:
        rows = self._ask(lambda reads: reads.confirm())
        if rows and (server.refuses_writes(rows[0][3]) or self._connected().is_elsewhere):
            raise self._lost(self._errors.read_only())  # where the name leads now, another owner may be
        if not rows or (rows[0][0], rows[0][1]) != (self._epoch, self._seq):
            raise self._fence("another owner has the shard")
        return Confirmation(rows[0][2])

    def close(self, *, clean: bool = False) -> None:
        link = self._link
        try:
            if clean and link is not None:
                give_up_epoch(link, self._dialect, self._epoch)
        except self._errors.error:
            log.debug("epoch.not_given_up", shard=self._shard)  # to the next owner it is as after a crash
        try:
            self._lock.release(link)
        except self._errors.error:
            log.debug("lock.not_released", shard=self._shard)  # the lock goes with the connection
        self._drop()
        self._claim.release()
        self._epoch = 0

    # --------------------------------------------------------------------------------------- transactions

    def commit(self, batch: Batch) -> None:
        link = self._connected()
        next_number = max(self._next_number, batch.next_number)
        plan = self._planner.plan(self._epoch, link.id, self._seq + 1, next_number, batch)
        counts: list[int] = []
        try:
            counts.extend(link.run(plan.texts))  # up to the text that fails
            missed = plan.missed(counts)
            if not plan.with_commit:
                link.execute(COMMIT_TEXT)
        except Fenced as fenced:
            raise self._fence(str(fenced)) from None
        except self._errors.error as error:
            committing = plan.with_commit or len(counts) == len(plan.rows)
            answered, null = self._errors.is_answer(error), self._errors.is_refused_null(error)
            state = end_of(plan, len(counts), committing=committing, answered=answered, null=null)
            raise self._ended(link, state, error) from error
        except BaseException:
            self._unsettled = True
            self._drop()
            raise
        self._seq, self._next_number = self._seq + 1, next_number
        if missed:
            self._missed(missed)

    @property
    def connected(self) -> bool:
        """Return True if there is a connection: the database answered when it was made. May be asked by any thread."""
        return self._link is not None

    @property
    def in_python(self) -> bool:
        """Return True if connections may have a `plain_socket`: the driver is written in Python."""
        return self._database.reads_in_python

    @property
    def plain_socket(self) -> socket.socket | None:
        """The connection's socket, if an event loop can run `begin`'s transactions on it."""
        return self._link.plain_socket if self._link is not None else None

    def begin(self, batch: Batch) -> Transaction:
        """Return `batch` as a transaction that an event loop runs on `plain_socket`, and that `conclude` ends.

        Raises StoreDown, Fenced and RowRejected, as `commit` does. No other method may be called in between."""
        link = self._link
        if link is None or (link.poll is not None and link.poll.poll(0)):
            raise self._unusable()
        planner, items, inserts = self._planner, batch.inserts, None
        next_number = max(self._next_number, batch.next_number)
        fence = self._epoch, link.id, self._seq + 1, next_number
        if link.compound is not None:
            command = link.compound.command(*fence, batch, planner.one_packet_bytes)
            if command is not None:
                return CompoundTransaction(Plan((), (), next_number, with_commit=True), [command], known=self._known)
        if link.inserts is not None and items and not batch.ordered and batch.members is None:
            size = 2 * sum(map(len, map(_payload, items))) + TEXT_OF_ITEM_BYTES * len(items)
            if size > planner.one_packet_bytes:  # a shorter transaction is faster as one packet
                inserts = in_binary(planner, link.inserts, items)
        plan = planner.plan(*fence, batch, inserts)
        if plan.with_commit:
            text = ";".join(plan.texts).encode()
            return Transaction(plan, [command_head(len(text) + 1, COM_QUERY) + text], known=self._known)
        packets = packets_of(plan, planner.packet_bytes)
        if inserts is None:
            return Transaction(plan, packets)
        link.autocommit = False
        return Transaction(plan, [b"".join(packets)], len(packets))

    def conclude(self, transaction: Transaction) -> None:
        """Take the end of a transaction of `begin`: returns or raises as `commit` of its batch does."""
        if transaction.state is State.COMMITTED:
            self._seq, self._next_number = self._seq + 1, transaction.plan.next_number
            if transaction.missed:
                self._missed(transaction.missed)
            return
        link = self._begun()
        link.forget_types()
        if isinstance(transaction, CompoundTransaction) and transaction.misunderstood:
            self._compounds = False
        error = self._errors.error_of(transaction.failure) if transaction.failure is not None else None
        if isinstance(transaction.failure, Loss):
            link.shut_down()
        raise self._ended(link, transaction.state, error) from error

    def _ended(self, link: Link, state: State, error: Exception | None) -> StoreError:
        if state is State.FENCED:
            return self._fence(ANOTHER_OWNER)
        assert error is not None, "the transaction has not ended"
        return self._roll_back(link, error) if state is State.FAILED else self._not_committed(link, error)

    def _missed(self, rows: int) -> None:
        self.mismatches += rows
        log.error("store.mismatch", shard=self._shard, rows=rows, seq=self._seq)

    def _roll_back(self, link: Link, error: Exception) -> StoreError:
        translated = self._errors.translate(error)
        if isinstance(translated, StoreBusy | RowRejected):
            try:
                link.rollback()
            except self._errors.error as lost:
                translated = self._errors.translate(lost)
            else:
                return translated
        return self._lost(translated)

    def _not_committed(self, link: Link, error: Exception) -> StoreError:
        if self._errors.certainly_not_committed(error):
            return self._roll_back(link, error)
        self._unsettled = True
        self._drop()
        return CommitUnknown(self._errors.words(error))

    # ---------------------------------------------------------------------------------------------- reads

    def page(
        self, lane: int, after: Key | None, limit: int, priorities: tuple[int, int] | None = None
    ) -> list[ReadyRow]:
        return self._ask(lambda reads: reads.page(lane, after, limit, priorities))

    def page_of_lanes(self, lanes: list[int], limit: int, priorities: tuple[int, int] | None = None) -> list[ReadyRow]:
        return self._ask(lambda reads: reads.page_of_lanes(lanes, limit, priorities))

    def facts(self, ids: list[int], headers: bool) -> list[ItemFacts]:
        return self._ask(lambda reads: reads.facts(ids, headers))

    def bodies(self, ids: list[int]) -> list[Body]:
        return self._ask(lambda reads: reads.bodies(ids))

    def due(self, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> Scan[DueRow]:
        return self._ask(lambda reads: reads.due(from_ms, now_ms, limit, after_id))

    def expiring(self, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        return self._ask(lambda reads: reads.expiring(from_ms, now_ms, limit))

    def look(self, ids: list[int]) -> list[Found]:
        return self._ask(lambda reads: reads.look(ids))

    def failures(self, ids: list[int]) -> list[FailureRow]:
        return self._ask(lambda reads: reads.failures(ids))

    def last_failures(self, ids: list[int]) -> list[tuple[int, LastFailure]]:
        return self._ask(lambda reads: reads.last_failures(ids))

    def failure_groups(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> FailureGroups:
        return self._ask(lambda reads: reads.failure_groups(lane, after, wanted, limit, rows))

    def dead_page(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> DeadPage:
        return self._ask(lambda reads: reads.dead_page(lane, after, wanted, limit, rows))

    def orders_behind(self, digest: bytes, limit: int) -> list[InOrder]:
        return self._ask(lambda reads: reads.orders_behind(digest, limit))

    def orders_of(self, keys: list[tuple[bytes, int]], limit: int) -> list[InOrder]:
        return self._ask(lambda reads: reads.orders_of(keys, limit))

    def list_behind(self, lanes: list[int], after: tuple[bytes, int] | None, limit: int) -> list[InOrder]:
        return self._ask(lambda reads: reads.list_behind(lanes, after, limit))

    def orders_in(self, digests: list[bytes]) -> set[bytes]:
        return self._ask(lambda reads: reads.orders_in(digests))

    def orders_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return self._ask(lambda reads: reads.orders_between(low, high, limit))

    def order_homes(self, low: bytes, high: bytes, limit: int) -> list[OrderHome]:
        return self._ask(lambda reads: reads.order_homes(low, high, limit))

    def dead_orders(self, after_id: int, limit: int) -> list[tuple[int, bytes | None]]:
        return self._ask(lambda reads: reads.dead_orders(after_id, limit))

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        return self._ask(lambda reads: reads.dedup(digests))

    def dedup_between(self, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        return self._ask(lambda reads: reads.dedup_between(low, high, limit))

    def held_keys(self, ids: list[int]) -> list[HeldKey]:
        return self._ask(lambda reads: reads.held_keys(ids))

    def keys_to_free(self, after: tuple[int, int], now_ms: int, limit: int) -> tuple[list[HeldKey], int]:
        return self._ask(lambda reads: reads.keys_to_free(after, now_ms, limit))

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        return self._ask(lambda reads: reads.dedup_expired(from_ms, now_ms, limit))

    def list_timer(self, lanes: list[int], leased: bool, after: tuple[int, int] | None, limit: int) -> list[TimerRow]:
        return self._ask(lambda reads: reads.list_timer(lanes, leased, after, limit))

    def ended_due(self, from_ms: int, now_ms: int, limit: int) -> Scan[EndedRow]:
        return self._ask(lambda reads: reads.ended_due(from_ms, now_ms, limit))

    def list_ended(self, lanes: list[int], state: int, after: tuple[int, int] | None, limit: int) -> list[EndedRow]:
        return self._ask(lambda reads: reads.list_ended(lanes, state, after, limit))

    def results(self, ids: list[int]) -> list[tuple[int, bytes]]:
        return self._ask(lambda reads: reads.results(ids))

    def progress(self, ids: list[int]) -> list[ProgressRow]:
        return self._ask(lambda reads: reads.progress(ids))

    def member_counts(self, batches: list[int]) -> list[ShardCounts]:
        return self._ask(lambda reads: reads.member_counts(batches))

    def unsent_counts(self, after: int, limit: int) -> list[ShardCounts]:
        return self._ask(lambda reads: reads.unsent_counts(after, limit))

    def members_of(self, batch: int, after: tuple[bool, int], limit: int) -> list[tuple[bool, int]]:
        return self._ask(lambda reads: reads.members_of(batch, after, limit))

    def batch_rows(self, batches: list[int]) -> list[BatchRow]:
        return self._ask(lambda reads: reads.batch_rows(batches))

    def live_batches(self, after: int, limit: int) -> list[BatchRow]:
        return self._ask(lambda reads: reads.live_batches(after, limit))

    def batch_parts(self, batches: list[int]) -> list[BatchPart]:
        return self._ask(lambda reads: reads.batch_parts(batches))

    def ended_batches(self, before_ms: int, limit: int) -> list[int]:
        return self._ask(lambda reads: reads.ended_batches(before_ms, limit))

    def change_settings(self, ns: str, change: Change) -> Settings:
        self._begun()
        return settings.change_settings(self._database, self._dialect, self._epoch, ns, change)

    # --------------------------------------------------------------------------------------------- the link

    def _ask(self, ask: Callable[[BatchReads], Answer]) -> Answer:
        self._connected()
        assert self._reads is not None
        try:
            return ask(self._reads)
        except self._errors.error as error:
            passing = self._errors.translate(error)
            raise (passing if isinstance(passing, StoreBusy | RowRejected) else self._lost(passing)) from error
        except BaseException:
            self._drop()  # an answer may be left that was not read to its end
            raise

    def _connected(self) -> Link:
        """Return the connection. Raises StoreDown if there is none, StoreEnded if nothing sent would arrive, Fenced."""
        link = self._link
        if link is None or (link.poll is not None and link.poll.poll(0)):
            raise self._unusable()
        return link

    def _unusable(self) -> StoreDown | Fenced:
        """Return why there is no connection that can be used."""
        if self._link is not None:
            return StoreEnded("the server ended the connection; nothing was sent")
        return Fenced(self._fenced) if self._fenced else StoreDown("not connected")

    def _begun(self) -> Link:
        """Return the connection of a call that has begun: its end has an answer of its own."""
        if self._link is None:
            raise self._unusable()
        return self._link

    def _fence(self, reason: str) -> Fenced:
        self._fenced = reason
        self._drop()
        return Fenced(reason)

    def _lost(self, error: Exception) -> StoreDown:
        """End the connection, whose state is unknown; `error` is the driver's or the seam's."""
        self._drop()
        made = error if isinstance(error, StoreError) else self._errors.translate(error)
        if isinstance(made, ShardRefused):
            return StoreDenied(explained(made))
        return made if isinstance(made, StoreDown) else StoreDown(explained(made))

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._reads = None  # an open cursor of SQLite would keep its locks
