"""A batch as the statements of one transaction: SQL text of integers and hex literals, so there is nothing to escape.

Each statement comes with the rows it has to match; any other number means that the host's memory and the database
disagree. Only rows of `expiry` are deleted on suspicion: a host that read an item without its body does not know its
TTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from foqs.ids import FOREVER_MS, HASH_SLOTS, hash_slot_bounds, hash_slot_of
from foqs.order import OrderRow
from foqs.rows import Batch, DedupRow, FailureRow, KeyRows, LaneRow, NewItem, NewOrdered, ProgressRow
from foqs.shardmgr.routing import slots_in
from foqs.store.dialect import ROWS, Dialect, Statement
from foqs.store.member_statements import write_members
from foqs.store.protocol import Fenced, RowRejected
from foqs.store.row_pieces import CASE_ROWS, TOO_LARGE, insert, insert_pieces, pieces, pieces_by_bytes
from foqs.store.tables import ENDED_OF_ITEM, EXPIRY_OF_ITEM, FAILURE_OF_ITEM, TIMER_OF_ITEM

ONE_PACKET_BYTES = 16 << 10
"""Text of a transaction that travels with its COMMIT: a larger one gains nothing by saving a trip."""
_FAILED_BYTES = 4_096  # the most that a failed attempt adds to a statement: reason and worker, in hex

ITEM = (
    "item(id, lane, priority, deliver_after, enqueued_at, expires_at, lease_ms, delivery, metadata, headers, payload)"
)
READY = "ready(lane, priority, deliver_after, id, attempt, lease, bytes)"
_TIMER = "timer(due, id, lane, lease, attempt, lease_ms, bytes)"
_EXPIRY = "expiry(at_ms, id)"
_DEDUP = "dedup(digest, content, id, expires_at)"
_FAILURE = "failure(lane, fingerprint, id, cause, attempts, died_at, topic, fairness, throttles, reason, rules, worker)"
_ENDED = "done(until_ms, id, lane, state, attempt, ended_at, bytes)"
_HELD_KEY = "held_key(id, digest, slot, number, free_at, dead)"
_RESULT = "result(id, data)"
_PROGRESS = "progress(id, checkpoint, done, total, said, log)"
_ORDERED = "ordered(digest, standing, place, id, lane)"
_ORDER_HOME = "order_home(digest, shard, stamp)"
_LANE = "lane(lane, ns, topic, fairness, throttles, rules)"
READY_KEY = ("lane", "priority", "deliver_after", "id")
# Templates with %d refuse a value that is no number, at half the price of f"{value:d}".
_TWO, _SEVEN = "(%d,%d)", "(%d,%d,%d,%d,%d,%d,%d)"
_BODY = "(%d,%d,%d,%d,%d,%d,%d,%d,%s,%s,x'%s')"
_NEW_READY = "(%d,%d,%d,%d,0,0,%d)"
_FENCE = (
    "UPDATE shard SET seq = CASE WHEN epoch = %d AND connection_id = %d AND seq = %d THEN %d END, "
    "next_number = %d, due_from_ms = %d, expiry_from_ms = %d, dedup_from_ms = %d%s WHERE one = 1"
)

# A server assigns from left to right: the first time is read before it changes.
_FIRST_AT = "first_at = COALESCE(first_at, deliver_after)"

ANOTHER_OWNER = "another owner has the shard"
COMMIT_TEXT = "COMMIT"
_SEVERAL_COMMANDS = "SET autocommit = 0"
FENCE = 1
"""The place of the fence among the statements."""


class NarrowRows(NamedTuple):
    """Rows of new items in addition to their bodies. `ready` has no attempt and no lease: both are 0."""

    ready: list[tuple[int, int, int, int, int]]
    timer: list[tuple[int, int, int, int, int, int, int]]
    expiry: list[tuple[int, int]]


class Plan(NamedTuple):
    """The statements of a transaction, from BEGIN and the fence on, and the rows that each must match.

    `texts` may have commands of prepared INSERTs, in bytes. `rows` has None where any number of rows will do.
    `next_number` is the number that the fence saves. `with_commit`: COMMIT is the last of `texts`; else it is sent
    after the replies to them."""

    texts: Sequence[Any]
    rows: tuple[int | None, ...]
    next_number: int
    with_commit: bool = False

    def missed(self, counts: Iterable[int]) -> int:
        """Return how many rows the statements missed that they should have matched. Raises Fenced."""
        missed = 0
        for at, (wanted, count) in enumerate(zip(self.rows, counts, strict=False)):
            if wanted is not None and count != wanted:
                if at == FENCE:
                    raise Fenced(ANOTHER_OWNER)
                missed += abs(wanted - count)
        return missed


class Planner(NamedTuple):
    """What the database and the connection take. `one_packet_bytes`: text that travels with COMMIT."""

    dialect: Dialect
    max_statement_bytes: int
    packet_bytes: int
    one_packet_bytes: int

    def plan(
        self,
        epoch: int,
        link: int,
        seq: int,
        next_number: int,
        batch: Batch,
        inserts: Sequence[Statement] | None = None,
    ) -> Plan:
        """Plan `batch`, in the order of its lists. Raises RowRejected for a row that no statement can carry.

        The fence sets a column that is NOT NULL to NULL unless the row is as its owner wrote it last, from the
        connection `link`. The error ends the packet, with all statements behind it and COMMIT. `inserts` stores the new
        items by several commands, which need autocommit switched off.
        """
        dialect = self.dialect
        saved = "" if batch.indexed_to is None else f", indexed_to = {batch.indexed_to:d}"
        saved += _saved_rarely(batch) if batch.slots is not None or batch.ended_from_ms is not None else ""
        from_ms = batch.due_from_ms, batch.expiry_from_ms, batch.dedup_from_ms
        fence = _FENCE % (epoch, link, seq - 1, seq, next_number, *from_ms, saved)
        made: list[Statement] = [(dialect.begin if inserts is None else _SEVERAL_COMMANDS, None), (fence, 1)]
        if batch.lanes_new or batch.weights:
            _write_lanes(made, batch, dialect)
        if batch.dedup_new or batch.dedup_gone is not None or batch.dedup_again or batch.keys is not None:
            _write_keys(made, batch, dialect)
        if batch.ordered or (batch.members is not None and batch.members.new):
            _write_linked(made, batch, dialect, self.max_statement_bytes)
        elif batch.inserts and inserts is None:
            _insert_items(made, batch.inserts, self.max_statement_bytes)
        made += inserts or ()
        if batch.ready_gone:
            dialect.delete_ready(made, batch.ready_gone)
        if batch.timer_gone:
            dialect.delete(made, "timer", "id", batch.timer_gone, TIMER_OF_ITEM)
        if (
            batch.metadata_new or batch.deliver_after_new or batch.failed_new or batch.ready_new or batch.timer_new
            or batch.moved
        ):  # fmt: skip
            _move(made, batch, dialect, self.max_statement_bytes)
        if any((batch.expiry_gone, batch.expiry_new, batch.failure_gone, batch.failure_new, batch.progress_new,
                batch.progress_gone)):  # fmt: skip
            _partners(made, batch, dialect, self.max_statement_bytes)
        if batch.ended_new or batch.ended_gone or batch.members is not None:
            _end_items(made, batch, dialect, self.max_statement_bytes)
        if batch.item_gone:
            dialect.delete(made, "item", "id", batch.item_gone)
        if batch.lanes_gone:
            dialect.delete(made, "lane", "lane", batch.lanes_gone)
        texts, rows = zip(*made, strict=True)
        if inserts is None and sum(map(len, texts)) <= self.one_packet_bytes:
            return Plan((*texts, COMMIT_TEXT), rows, next_number, with_commit=True)
        return Plan(texts, rows, next_number)


def planner_of(dialect: Dialect, max_statement_bytes: int, packet_bytes: int) -> Planner:
    one_packet_bytes = min(ONE_PACKET_BYTES, packet_bytes // 2) if dialect.one_packet else 0
    return Planner(dialect, max_statement_bytes, packet_bytes, one_packet_bytes)


def in_packets(statements: Sequence[str], packet_bytes: int) -> Iterator[str]:
    """Yield the statements as texts that fit in a packet each."""
    size, first = 0, 0
    for at, statement in enumerate(statements):
        if size and size + len(statement) > packet_bytes:
            yield ";".join(statements[first:at])
            size, first = 0, at
        size += len(statement) + 1
    yield ";".join(statements[first:])


def _move(made: list[Statement], batch: Batch, dialect: Dialect, max_statement_bytes: int) -> None:
    """New metadata and times of changed items, and their new rows in `ready` and `timer`."""
    _set_metadata(made, dialect, batch.metadata_new, max_statement_bytes)
    times = [(item_id, f"{value:d}") for item_id, value in batch.deliver_after_new]
    made += [_update(dialect, "deliver_after", piece, f"{_FIRST_AT}, ") for piece in pieces(times, CASE_ROWS)]
    if batch.failed_new:
        most = max(1, min(CASE_ROWS, max_statement_bytes // _FAILED_BYTES))
        made += [_fail(dialect, piece) for piece in pieces(batch.failed_new, most)]
    made += [_replace(dialect, item, max_statement_bytes) for item in batch.bodies_new]
    if batch.placed:
        for first in (False, True):
            placed = [row for row in batch.placed if row[3] is first]
            made += [_place(dialect, piece, first=first) for piece in pieces(placed, CASE_ROWS)]
    if batch.moved:
        dead = {row.id for row in batch.failure_new}  # the row of any other item that moves forgets its last failure
        for redriven in (False, True):
            moved = [row for row in batch.moved if (row[0] not in dead) is redriven]
            made += [_move_to_lanes(dialect, piece, redriven=redriven) for piece in pieces(moved, CASE_ROWS)]
    insert(made, READY, [_SEVEN % row for row in batch.ready_new])
    insert(made, _TIMER, [_SEVEN % row for row in batch.timer_new])


def _replace(dialect: Dialect, item: NewItem, max_statement_bytes: int) -> Statement:
    metadata, headers = ["NULL" if data is None else f"x'{data.hex()}'" for data in (item.metadata, item.headers)]
    sets = f"first_at = NULL, priority = {item.priority:d}, deliver_after = {item.deliver_after_ms:d}"
    sets += f", metadata = {metadata}, headers = {headers}, payload = x'{item.payload.hex()}'"
    if len(sets) + 256 > max_statement_bytes:
        raise RowRejected(TOO_LARGE)
    return f"UPDATE {dialect.forced('item')} SET {sets} WHERE id = {item.id:d}", 1


def _fail(dialect: Dialect, rows: Sequence[tuple[int, int, bytes]]) -> Statement:
    """New times of items whose attempts failed, with these attempts: in one write of their rows."""
    times = " ".join([f"WHEN {item_id:d} THEN {at_ms:d}" for item_id, at_ms, _ in rows])
    failures = " ".join([f"WHEN {item_id:d} THEN x'{packed.hex()}'" for item_id, _, packed in rows])
    ids = ",".join([f"{row[0]:d}" for row in rows])
    sets = f"{_FIRST_AT}, deliver_after = CASE id {times} END, last_failure = CASE id {failures} END"
    return f"UPDATE {dialect.forced('item')} SET {sets} WHERE id IN ({ids})", len(rows)


def _move_to_lanes(dialect: Dialect, rows: Sequence[tuple[int, int, int, int]], *, redriven: bool) -> Statement:
    """A dead letter keeps its last failure: it says more than that its attempts are used up."""
    before = "first_at = NULL, last_failure = NULL" if redriven else "first_at = NULL"
    return _set_columns(dialect, before, ("lane", "deliver_after", "expires_at"), rows)


def _place(dialect: Dialect, rows: Sequence[tuple[int, int, int, bool]], *, first: bool) -> Statement:
    """`first`: the new times are the first ones of the items."""
    before = "first_at = NULL" if first else _FIRST_AT
    return _set_columns(dialect, before, ("priority", "deliver_after"), rows)


def _set_columns(dialect: Dialect, before: str, columns: Sequence[str], rows: Sequence[tuple[int, ...]]) -> Statement:
    """`rows`: an id, and the values of `columns`."""
    sets = [
        f"{column} = CASE id {' '.join([f'WHEN {row[0]:d} THEN {row[at]:d}' for row in rows])} END"
        for at, column in enumerate(columns, 1)
    ]
    ids = ",".join([f"{row[0]:d}" for row in rows])
    text = f"UPDATE {dialect.forced('item')} SET {before}, {', '.join(sets)} WHERE id IN ({ids})"
    return text, len(rows)


def _partners(made: list[Statement], batch: Batch, dialect: Dialect, max_statement_bytes: int) -> None:
    """Rows that some items have in addition: in `expiry`, `failure` and `progress`."""
    dialect.delete(made, "expiry", "id", batch.expiry_gone, EXPIRY_OF_ITEM, all_there=False)
    insert(made, _EXPIRY, [_TWO % row for row in batch.expiry_new])
    dialect.delete(made, "failure", "id", batch.failure_gone, FAILURE_OF_ITEM, all_there=False)
    if batch.failure_new:
        rows = [_failure(row) for row in batch.failure_new]
        insert_pieces(made, _FAILURE, pieces_by_bytes(rows, max_statement_bytes))
    rows = [_progress(row) for row in batch.progress_new]
    for piece in pieces_by_bytes(rows, max_statement_bytes):
        made += [(f"INSERT INTO {_PROGRESS} VALUES {','.join(piece)} {dialect.add_progress}", None)]
    dialect.delete(made, "progress", "id", batch.progress_gone, all_there=False)


def _end_items(made: list[Statement], batch: Batch, dialect: Dialect, max_statement_bytes: int) -> None:
    """Items that are kept, and members of batches."""
    insert(made, _ENDED, [_SEVEN % row for row in batch.ended_new])
    results = [f"({item_id:d},x'{data.hex()}')" for item_id, data in batch.results_new]
    insert_pieces(made, _RESULT, pieces_by_bytes(results, max_statement_bytes))
    dialect.delete(made, "done", "id", batch.ended_gone, ENDED_OF_ITEM)
    dialect.delete(made, "result", "id", batch.ended_gone, all_there=False)
    if batch.members is not None:
        write_members(made, batch.members, dialect, max_statement_bytes)


def _progress(row: ProgressRow) -> str:
    checkpoint, text = ["NULL" if data is None else f"x'{data.hex()}'" for data in (row.checkpoint, row.text)]
    done, total = ["NULL" if number is None else f"{number:d}" for number in (row.done, row.total)]
    return f"({row.id:d},{checkpoint},{done},{total},{text},x'{row.log.hex()}')"


def _saved_rarely(batch: Batch) -> str:
    saved, slots = "", batch.slots
    if slots is not None:
        saved += f", slots_stamp = {slots.stamp:d}, slots = x'{slots.bits.hex()}'"
    if batch.ended_from_ms is not None:
        saved += f", done_from_ms = {batch.ended_from_ms:d}"
    return saved


def _write_keys(made: list[Statement], batch: Batch, dialect: Dialect) -> None:
    """Before the items: a transaction that fails for a key that is there has not done much yet."""
    keys = batch.keys
    if keys is not None:
        for low, high in map(hash_slot_bounds, keys.cleared):
            within = f"digest BETWEEN x'{low.hex()}' AND x'{high.hex()}'"
            made += [(f"DELETE FROM {table} WHERE {within}", None) for table in ("dedup", "order_home")]
    if batch.dedup_gone is not None:
        from_ms, to_ms = batch.dedup_gone
        expired = f"DELETE FROM dedup WHERE expires_at >= {from_ms:d} AND expires_at <= {to_ms:d}"
        made.append((expired, None))
    insert(made, _DEDUP, [_dedup(row) for row in batch.dedup_new])
    copied = () if keys is None else (*keys.copied, *keys.marks)
    made += [
        (f"REPLACE INTO {_DEDUP} VALUES {','.join([_dedup(row) for row in piece])}", None)
        for piece in pieces([*copied, *batch.dedup_again], ROWS)
    ]
    if keys is not None:
        _change_held_keys(made, keys, dialect)
        _change_homes(made, keys)


def _change_homes(made: list[Statement], keys: KeyRows) -> None:
    for piece in pieces(keys.homes, ROWS):
        rows = [f"(x'{home.digest.hex()}',{home.shard:d},{home.stamp:d})" for home in piece]
        made.append((f"REPLACE INTO {_ORDER_HOME} VALUES {','.join(rows)}", None))
    for _, digest, home in keys.homes_gone:
        which = f"digest = x'{digest.hex()}' AND shard = {home.shard:d} AND stamp = {home.stamp:d}"
        made.append((f"DELETE FROM order_home WHERE {which}", None))
    made += [(f"DELETE FROM order_home WHERE shard = {shard:d}", None) for shard in keys.shards_gone]


def _change_held_keys(made: list[Statement], keys: KeyRows, dialect: Dialect) -> None:
    """Keys that items hold, free or hold again, in this shard and elsewhere."""
    rows = [f"({key.id:d},x'{key.digest.hex()}',{hash_slot_of(key.digest):d},0,0,0)" for key in keys.held]
    insert(made, _HELD_KEY, rows)
    # A redrive may be taking the key of an item that has claimed it.
    free_at = f"CASE WHEN {_in_slots(keys.bits)} AND free_at = 0 THEN 0 ELSE 1 END"
    for dead, gone in ((0, keys.ended), (1, keys.dead)):
        for ids in pieces(gone, ROWS):
            made.append((_set_held(dialect, ids, f"dead = {dead}, free_at = {free_at}"), None))
            made.append((dialect.free_keys.format(ids=",".join(map(str, ids))), None))
    changes = [_set_held(dialect, ids, "dead = 0, free_at = 0") for ids in pieces(keys.redriven, ROWS)]
    changes += [
        _set_held(dialect, [key.id], f"number = number + 1, free_at = {key.free_at_ms:d}") + " AND dead = 1"
        for key in keys.claims
    ]
    changes += [
        _set_held(dialect, [key.id], "free_at = 0") + f" AND free_at = {key.free_at_ms:d} AND number = {key.number:d}"
        for key in keys.noted
    ]
    made += [(text, None) for text in changes]
    gone = [*keys.ended, *(key.id for key in keys.noted)]
    dialect.delete(made, "held_key", "id", gone, all_there=False, also=" AND free_at = 0 AND dead = 0")
    for key in keys.freed:
        up_to = FOREVER_MS + key.number
        which = f"digest = x'{key.digest.hex()}' AND id = {key.id:d} AND expires_at <= {up_to:d}"
        made.append((f"DELETE FROM dedup WHERE {which}", None))
    taken = [_dedup(row) for row in keys.taken]
    ending = dialect.take_keys.format(at=keys.taken_ms)
    made += [(f"INSERT INTO {_DEDUP} VALUES {','.join(piece)} {ending}", None) for piece in pieces(taken, ROWS)]


def _set_held(dialect: Dialect, ids: Sequence[int], sets: str) -> str:
    return f"UPDATE {dialect.forced('held_key')} SET {sets} WHERE id IN ({','.join(map(str, ids))})"


def _in_slots(bits: bytes) -> str:
    """Return the condition that a held key is in one of the slots."""
    slots = list(slots_in(bits))
    if len(slots) == HASH_SLOTS:
        return "1 = 1"
    return f"slot IN ({','.join(map(str, slots))})" if slots else "1 = 0"


def narrow_rows(items: Iterable[NewItem]) -> NarrowRows:
    """The rows that new items get: in `ready`, unless they are unindexed, or `timer`, and in `expiry` with a TTL."""
    made = NarrowRows([], [], [])
    for item in items:
        size_bytes = len(item.payload)
        if item.metadata is not None:
            size_bytes += len(item.metadata)
        if item.headers is not None:
            size_bytes += len(item.headers)
        if item.due_ms:
            made.timer.append((item.due_ms, item.id, item.lane, 0, 0, 0, size_bytes))
        elif not item.unindexed:
            made.ready.append((item.lane, item.priority, item.deliver_after_ms, item.id, size_bytes))
        if item.expires_at_ms:
            made.expiry.append((item.expires_at_ms, item.id))
    return made


def _insert_items(
    made: list[Statement],
    items: Sequence[NewItem],
    max_statement_bytes: int,
    *,
    in_order: bool = False,
    members: bool = False,
) -> None:
    """`in_order`: all have order keys. `members`: all belong to batches."""
    bodies: list[str] = []
    narrow = in_order
    for item in items:
        key = (item.id, item.lane, item.priority, item.deliver_after_ms)
        metadata = "NULL" if item.metadata is None else f"x'{item.metadata.hex()}'"
        headers = "NULL" if item.headers is None else f"x'{item.headers.hex()}'"
        rest = (item.enqueued_at_ms, item.expires_at_ms, item.lease_ms, item.delivery, metadata, headers)
        bodies.append(_BODY % (*key, *rest, item.payload.hex()))
        narrow = narrow or not item.unindexed or item.expires_at_ms > 0
    table = ITEM
    if in_order or members:
        table = f"{ITEM[:-1]}{', order_key, order_at' if in_order else ''}{', batch' if members else ''})"
        bodies = [f"{body[:-1]}{_links(item)})" for body, item in zip(bodies, items, strict=True)]
    if sum(map(len, bodies)) <= min(ONE_PACKET_BYTES, max_statement_bytes // 2):
        made.append((f"INSERT INTO {table} VALUES {','.join(bodies)}", len(bodies)))
    else:
        insert_pieces(made, table, pieces_by_bytes(bodies, max_statement_bytes))
    if narrow:
        rows = narrow_rows(items)
        if rows.ready and not in_order:
            insert(made, READY, list(map(_NEW_READY.__mod__, rows.ready)))
        insert_timed(made, rows)


def _links(item: NewItem) -> str:
    """Return the columns of an item that has an order key, or a batch, or both."""
    order = f",x'{item.order_key.hex()}',x'{item.order_at.hex()}'" if isinstance(item, NewOrdered) else ""
    return f"{order},{item.batch:d}" if item.batch else order


def _write_linked(made: list[Statement], batch: Batch, dialect: Dialect, max_statement_bytes: int) -> None:
    """New items, some with order keys or in batches, and the places of items with order keys."""
    dialect.delete_ordered(made, [row[:3] for row in batch.order_gone])
    kinds: dict[tuple[bool, bool], list[NewItem]] = {}
    for item in batch.inserts:
        kinds.setdefault((isinstance(item, NewOrdered), item.batch != 0), []).append(item)
    for (in_order, members), items in sorted(kinds.items()):
        _insert_items(made, items, max_statement_bytes, in_order=in_order, members=members)
    rows = [*(item.order_row for item in batch.inserts if isinstance(item, NewOrdered)), *batch.order_new]
    insert(made, _ORDERED, [_ordered(row) for row in rows])
    orders = [(item_id, f"x'{order_at.hex()}'") for item_id, order_at in batch.order_at_new]
    made += [_update(dialect, "order_at", piece) for piece in pieces(orders, CASE_ROWS)]


def insert_timed(made: list[Statement], rows: NarrowRows) -> None:
    """Append the rows of `timer` and `expiry`."""
    if rows.timer:
        insert(made, _TIMER, [_SEVEN % row for row in rows.timer])
    if rows.expiry:
        insert(made, _EXPIRY, [_TWO % row for row in rows.expiry])


def _set_metadata(
    made: list[Statement], dialect: Dialect, pairs: list[tuple[int, bytes]], max_statement_bytes: int
) -> None:
    rows = [(item_id, f"x'{value.hex()}'") for item_id, value in pairs]
    for piece in pieces(rows, CASE_ROWS):
        if sum(len(value) for _, value in piece) > max_statement_bytes // 2:
            made += [_update(dialect, "metadata", [row]) for row in piece]
        else:
            made.append(_update(dialect, "metadata", piece))


def _update(dialect: Dialect, column: str, rows: Sequence[tuple[int, str]], before: str = "") -> Statement:
    cases = " ".join([f"WHEN {item_id:d} THEN {value}" for item_id, value in rows])
    ids = ",".join([f"{item_id:d}" for item_id, _ in rows])
    text = f"UPDATE {dialect.forced('item')} SET {before}{column} = CASE id {cases} END WHERE id IN ({ids})"
    return text, len(rows)


def _write_lanes(made: list[Statement], batch: Batch, dialect: Dialect) -> None:
    if batch.lanes_new:
        insert(made, _LANE, [f"({_lane(row)})" for row in batch.lanes_new])
    made += [_weigh(dialect, piece) for piece in pieces(batch.weights, CASE_ROWS)]


def _lane(row: LaneRow) -> str:
    return f"{row.lane:d},{_hex((row.ns, row.topic, row.fairness, row.throttles, row.rules))}"


def _weigh(dialect: Dialect, weights: Sequence[tuple[int, int]]) -> Statement:
    cases = " ".join([f"WHEN {lane:d} THEN {weight:d}" for lane, weight in weights])
    lanes = ",".join([f"{lane:d}" for lane, _ in weights])
    text = f"UPDATE {dialect.forced('lane')} SET weight = CASE lane {cases} END WHERE lane IN ({lanes})"
    return text, None


def _failure(row: FailureRow) -> str:
    numbers = f"{row.lane:d},{row.fingerprint:d},{row.id:d},{row.cause:d},{row.attempts:d},{row.died_at_ms:d}"
    texts = (row.topic, row.fairness, row.throttles, row.reason, row.rules, row.worker)
    return f"({numbers},{_hex(texts)})"


def _ordered(row: OrderRow) -> str:
    return f"(x'{row.digest.hex()}',{row.standing:d},{row.place:d},{row.id:d},{row.lane:d})"


def _hex(names: Iterable[bytes]) -> str:
    return ",".join([f"x'{name.hex()}'" for name in names])


def _dedup(row: DedupRow) -> str:
    return f"(x'{row.digest.hex()}',{row.content:d},{row.id:d},{row.expires_at_ms:d})"
