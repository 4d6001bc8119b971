"""The batches of a consuming stream: their numbers, their rows, and the folder that keeps them.

Batches are numbered from 1. The offset n means "the batches 1 to n". A batch is in the ledger from the lease of its
items until its acks are settled. Batches up to `committed` have reached their sink and only wait for their acks.

A query delivers an item in one batch. If a lease ends before the ack, the service delivers the item again, perhaps to
the same query: `Again` has the newest lease then, and the item gets no second batch.

The driver builds the columns of a batch once, as an Arrow table. After that it moves bytes: a task makes rows of them.
"""

from __future__ import annotations

import fcntl
import json
import os
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa

from foqs.client.items import Delivery, Item
from foqs.errors import Invalid, Unavailable
from foqs.folders import replace_file

_FORMAT = 1
NEW_START = (
    "start with a new checkpointLocation and a new stateDir; leased items are delivered again when their leases end"
)
MOST_DELIVERED = 1_000_000
"""Delivered items with a refused ack that a query remembers."""
_AGAIN_HEAD = b"foqs again 1\n"
_LOOK_AGAIN_S = 0.05
_SUFFIX = ".batch"
_AGAIN = "again"
COLUMNS = {
    "id": "bigint", "namespace": "string", "topic": "string", "priority": "int", "payload": "binary",
    "metadata": "binary", "headers": "map<string,string>", "attempt": "int", "deliver_after": "timestamp",
    "enqueued_at": "timestamp", "delivery": "string", "fairness_key": "string", "throttle_keys": "array<string>",
}  # fmt: skip
"""Names and types in Spark's spelling. `metadata` and `headers` may be null; `delivery` is AT_LEAST_ONCE or
AT_MOST_ONCE. `fairness_key` is "" and `throttle_keys` is empty where an item has none."""

_BATCH_FORMAT = 1
_NAMES = {int(delivery): delivery.name for delivery in Delivery}
_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema([
    ("lease", pa.int64()), ("id", pa.int64()), ("namespace", pa.string()), ("topic", pa.string()),
    ("priority", pa.int32()), ("payload", pa.binary()), ("metadata", pa.binary()),
    ("headers", pa.map_(pa.string(), pa.string())), ("attempt", pa.int32()), ("deliver_after", _TIME),
    ("enqueued_at", _TIME), ("delivery", pa.string()), ("fairness_key", pa.string()),
    ("throttle_keys", pa.list_(pa.string())),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """Numbers of the batches that have files, in `batches`, ascending."""

    committed: int = 0
    batches: tuple[int, ...] = ()

    @property
    def unsettled(self) -> tuple[int, ...]:
        """The batches that reached their sink and wait for their acks."""
        return tuple(seq for seq in self.batches if seq <= self.committed)

    def commit(self, seq: int) -> Ledger:
        """Commit everything up to `seq`: it has reached its sink. Raises Invalid if that cannot be an offset of this
        ledger."""
        if seq < self.committed:
            raise Invalid(
                f"the checkpoint is at batch {seq} and stateDir at batch {self.committed}: they are not of one query, "
                f"or the checkpoint was put back; {NEW_START}"
            )
        self._all_there(self.committed, seq)
        return replace(self, committed=seq)

    def wanted(self, start: int, end: int) -> range:
        """Return the batches after `start` up to `end`. Raises Invalid if one of them is missing."""
        self._all_there(start, end)
        return range(start + 1, end + 1)

    def added(self, seq: int) -> Ledger:
        return replace(self, batches=tuple(sorted({*self.batches, seq})))

    def settled(self, seq: int) -> Ledger:
        return replace(self, batches=tuple(other for other in self.batches if other != seq))

    def _all_there(self, start: int, end: int) -> None:
        missing = set(range(start + 1, end + 1)) - set(self.batches) if end - start < 1_000 else {start + 1}
        if missing:
            raise Invalid(
                f"the checkpoint is at batch {end}, and batch {min(missing)} is not in stateDir: "
                f"it belongs to another query; {NEW_START}"
            )


class Again:
    """The newest known leases of items that came again, by item id, the oldest first.

    An item of a batch stays until the acks of the batch are settled. An item that no batch has any longer was
    delivered, and its ack was refused: it stays until the service says that it is gone, and is acked when it comes
    again.
    """

    def __init__(self, leases: Mapping[int, int] | None = None) -> None:
        self.leases: dict[int, int] = dict(leases or {})
        self.changed = False

    def __contains__(self, item_id: int) -> bool:
        return item_id in self.leases

    def note(self, item_id: int, lease: int) -> None:
        """Note the newest lease of an item."""
        self.changed = True
        self.leases.pop(item_id, None)
        self.leases[item_id] = lease

    def end(self, item_ids: Iterable[int]) -> None:
        """Forget items: they are gone, or were given back before their delivery."""
        for item_id in item_ids:
            self.changed |= self.leases.pop(item_id, None) is not None

    def drop_beyond(self, most: int, in_batches: Collection[int]) -> int:
        """Forget the oldest items beyond `most`, but for those `in_batches`. Return their number."""
        over = len(self.leases) - most
        if over <= 0:
            return 0
        dropped = [item_id for item_id in self.leases if item_id not in in_batches][:over]
        self.end(dropped)
        return len(dropped)


def again_text(again: Again) -> bytes:
    return sealed(_AGAIN_HEAD + array("q", [number for pair in again.leases.items() for number in pair]).tobytes())


def read_again(text: bytes) -> Again:
    """Raises Invalid if the text is damaged or has an unknown format."""
    body = opened(text)
    if not body.startswith(_AGAIN_HEAD):
        raise Invalid("its format is not known to this version")
    numbers = array("q", body[len(_AGAIN_HEAD) :])
    return Again(dict(zip(numbers[::2], numbers[1::2], strict=True)))


def split(rows: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Split into at most `parts` runs of nearly the same length, none empty.

    >>> split([1, 2, 3], 2)
    [[1, 2], [3]]
    """
    length, over = divmod(len(rows), parts)
    cuts = [n * length + min(n, over) for n in range(parts + 1)]
    return [rows[low:high] for low, high in pairwise(cuts) if low < high]


def ready_ms(item: Item) -> int:
    """Return when an item became ready (Unix epoch, by the server's clock)."""
    return max(item.enqueued_at_ms, item.deliver_after_ms)


def state_text(committed: int, namespace: str) -> bytes:
    state = {"format": _FORMAT, "committed": committed, "namespace": namespace}
    return sealed(json.dumps(state, separators=(",", ":")).encode())


def read_state(text: bytes, namespace: str) -> int:
    """Return the number of the last committed batch. Raises Invalid if the text belongs to another namespace, is
    damaged or has an unknown format."""
    state = json.loads(opened(text))
    if state["format"] != _FORMAT:
        raise Invalid(f"its format {state['format']} is not known to this version")
    if state["namespace"] != namespace:
        raise Invalid(f"stateDir is that of a query over the namespace {state['namespace']!r}, not {namespace!r}")
    return int(state["committed"])


def sealed(body: bytes) -> bytes:
    """Return `body` after a line with its checksum."""
    return sha256(body).hexdigest().encode() + b"\n" + body


def opened(text: bytes) -> bytes:
    """Return the body of what `sealed` made. Raises Invalid if it is damaged."""
    seal, _, body = text.partition(b"\n")
    if sha256(body).hexdigest().encode() != seal:
        raise Invalid("its checksum is wrong: it is damaged")
    return body


def table_of(items: Sequence[Item]) -> Any:
    """Return the table of the items with their leases."""
    columns = [
        [item.lease for item in items],
        [item.id for item in items],
        [item.ns for item in items],
        [item.topic for item in items],
        [item.priority for item in items],
        [item.payload for item in items],
        [item.metadata for item in items],
        [None if item.headers is None else list(item.headers.items()) for item in items],
        [item.attempt for item in items],
        [item.deliver_after_ms * 1_000 for item in items],
        [item.enqueued_at_ms * 1_000 for item in items],
        [_NAMES[item.delivery] for item in items],
        [item.fairness_key for item in items],
        [item.throttle_keys for item in items],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def without_body(item: Item) -> Item:
    """Return the part of a leased item that stays in memory."""
    return Item(item.id, item.lease, item.attempt, item.ns, item.topic, item.priority)


def leases_of(table: Any) -> list[Item]:
    """Return the items of a table without their bodies."""
    names = ("id", "lease", "attempt", "namespace", "topic", "priority")
    return list(map(Item, *[table[name].to_pylist() for name in names]))


def parts_of(table: Any, columns: Sequence[str], parts: int) -> list[bytes]:
    """Return the rows in at most `parts` runs of nearly the same length, each packed on its own."""
    chosen = table.select(columns)
    return [_packed(chosen.slice(run[0], len(run))) for run in split(range(len(table)), parts)]


def unpacked(part: bytes) -> Any:
    """Return the RecordBatches of a part."""
    return pa.ipc.open_stream(part)


def batch_text(seq: int, items: Sequence[Item]) -> bytes:
    head = json.dumps({"format": _BATCH_FORMAT, "seq": seq}).encode()
    return sealed(head + b"\n" + _packed(table_of(items)))


def read_batch(text: bytes, seq: int) -> Any:
    """Return the table of the items with their leases. Raises Invalid if the text is damaged, belongs to another batch
    or has an unknown format."""
    head, _, packed = opened(text).partition(b"\n")
    batch = json.loads(head)
    if batch["seq"] != seq:
        raise Invalid(f"it holds batch {batch['seq']}")
    if batch["format"] != _BATCH_FORMAT:
        raise Invalid(f"its format {batch['format']} is not known to this version")
    return unpacked(packed).read_all()


def joined(tables: Sequence[Any]) -> Any:
    return pa.concat_tables([_SCHEMA.empty_table(), *tables])


def _packed(table: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


class StateFolder:
    """The folder of a query. One process uses it at a time, and every file is replaced as a whole.

    Files: `lock`, `state`, `<number>.batch` for each batch of the ledger, and `again` if items came again. Every method
    may also raise OSError. One thread may use `write` and `erase` while another uses the other methods; one thread at a
    time uses `save_again`.
    """

    def __init__(self, path: str, namespace: str) -> None:
        self.path = Path(path)
        self._namespace = namespace
        self._lock: int | None = None
        self.ledger = Ledger()
        self.again = Again()

    def open(self, wait_s: float) -> None:
        """Create the folder if it is missing. Raises Unavailable if another process holds it for longer than `wait_s`,
        and Invalid if it belongs to another namespace or is damaged."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock(monotonic() + wait_s)
        try:
            self.ledger = self._read_ledger()
            self.again = self._read_again()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def commit(self, seq: int) -> None:
        """Raises Invalid: see `Ledger.commit`."""
        ledger = self.ledger.commit(seq)
        if ledger != self.ledger:
            replace_file(self.path / "state", state_text(seq, self._namespace))
            self.ledger = ledger

    def write(self, seq: int, items: Sequence[Item]) -> None:
        """Write a batch that is not yet in the ledger."""
        replace_file(self.path / self._name(seq), batch_text(seq, items))

    def erase(self, seq: int) -> None:
        """Undo `write`."""
        (self.path / self._name(seq)).unlink(missing_ok=True)

    def add(self, seq: int) -> None:
        """Add a written batch to the ledger."""
        self.ledger = self.ledger.added(seq)

    def read(self, seq: int) -> Any:
        """Return the table of a batch. Raises Invalid when the file is damaged."""
        path = self.path / self._name(seq)
        try:
            return read_batch(path.read_bytes(), seq)
        except Invalid as error:
            raise Invalid(f"{path}: {error.message}; {NEW_START}") from None

    def remove(self, seq: int) -> None:
        """Remove the batch: its acks are settled, or its items were given back."""
        self.erase(seq)
        self.ledger = self.ledger.settled(seq)

    def save_again(self) -> None:
        """Write the leases of items that came again, if they have changed."""
        if self.again.changed:
            replace_file(self.path / _AGAIN, again_text(self.again))
            self.again.changed = False

    def _name(self, seq: int) -> str:
        return f"{seq}{_SUFFIX}"

    def _take_lock(self, deadline: float) -> None:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() >= deadline:
                    os.close(lock)
                    raise Unavailable(
                        f"{self.path} is in use by another query: each needs a stateDir of its own"
                    ) from None
                sleep(_LOOK_AGAIN_S)
            else:
                self._lock = lock
                return

    def _read_ledger(self) -> Ledger:
        for left in self.path.glob("*.tmp"):
            left.unlink()
        state = self.path / "state"
        try:
            committed = read_state(state.read_bytes(), self._namespace)
        except FileNotFoundError:
            committed = 0
            # Written before the first batch, so the folder always names its namespace.
            replace_file(self.path / "state", state_text(0, self._namespace))
        except Invalid as error:
            raise Invalid(f"{state}: {error.message}; {NEW_START}") from None
        names = (path.stem for path in self.path.glob(f"*{_SUFFIX}"))
        return Ledger(committed, tuple(sorted(int(name) for name in names if name.isdecimal())))

    def _read_again(self) -> Again:
        path = self.path / _AGAIN
        try:
            return read_again(path.read_bytes())
        except FileNotFoundError:
            return Again()
        except Invalid as error:
            raise Invalid(
                f"{path}: {error.message}; if you remove it, items whose leases had ended may be delivered again"
            ) from None
