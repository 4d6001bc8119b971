"""The replies to the clients of a queue as events, the log files of these events, and the payloads of items.

`began` and `ended` are nanoseconds of the machine's monotonic clock, the same for all processes: the host acted
between them. Events are written one a line (JSON: the kind, then the fields in order).
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

NS_PER_MS = 1_000_000


class Answer(StrEnum):
    OK = "ok"
    REFUSED = "refused"  # certainly not done: UNAVAILABLE, OVERLOADED, or the request was never sent whole
    UNKNOWN = "unknown"  # OUTCOME_UNKNOWN, or no reply
    STALE = "stale"
    NOT_FOUND = "not_found"


class Enqueue(NamedTuple):
    """One item was given; `key` is in its payload and no other item has it. `id` is 0 unless the answer is OK."""

    began: int
    ended: int
    key: str
    id: int
    answer: Answer
    at_most_once: bool


class Dequeue(NamedTuple):
    """A request for up to `wanted` items. Without a reply (`answered`), it may have leased items that no client knows.
    `doubtful`: at-most-once items whose outcome is unknown according to the reply."""

    began: int
    ended: int
    wanted: int
    answered: bool
    doubtful: tuple[int, ...] = ()


class Delivery(NamedTuple):
    """An item came; its lease lasts `lease_ms` from some moment between `began` and `ended`. `checkpoint`: the number
    that it came with, 0 without one."""

    began: int
    ended: int
    key: str
    id: int
    lease: int
    attempt: int
    lease_ms: int
    checkpoint: int = 0


class Step(NamedTuple):
    """A consumer gave the checkpoint `number`, to be committed before the answer. Later ones have higher numbers."""

    began: int
    ended: int
    id: int
    lease: int
    number: int
    answer: Answer


class Ack(NamedTuple):
    began: int
    ended: int
    id: int
    lease: int
    answer: Answer


class Nack(NamedTuple):
    began: int
    ended: int
    id: int
    lease: int
    answer: Answer


class End(NamedTuple):
    """A client asked for the end of an item, other than by an ack. `how` is that of the end event, and `mark` the lease
    of a failure that is the last one."""

    began: int
    ended: int
    id: int
    how: str
    mark: str
    answer: Answer


class Redrive(NamedTuple):
    """A client asked for the return of a dead letter."""

    began: int
    ended: int
    id: int
    answer: Answer


class Told(NamedTuple):
    """The end event of the item `id` was delivered, itself an item with the id `event`. `mark` is the result, or the
    reason of a consumer's failure."""

    began: int
    ended: int
    event: int
    id: int
    topic: str
    how: str
    mark: str


class Look(NamedTuple):
    """How an item ended, which its topic keeps. `state` is an ItemState, 0 if the answer was NOT_FOUND."""

    began: int
    ended: int
    id: int
    state: int
    result: str


class Crash(NamedTuple):
    """`what` is "host" or "database": killed after `began`, serving again at `ended`."""

    began: int
    ended: int
    what: str


class Loss(NamedTuple):
    """The databases of `shards` were replaced by an older copy: a backup, or a replica that was behind.

    The copy was made between `began` and `copied`, and the original was gone at `ended`. A change that was committed
    after the copy was made is undone. Until `back`, when the shards were served from the copy, their owners may have
    answered from memory. `what`: the fault.
    """

    began: int
    ended: int
    copied: int
    back: int
    shards: tuple[int, ...]
    what: str


Event = Enqueue | Dequeue | Delivery | Step | Ack | Nack | End | Redrive | Told | Look | Crash | Loss

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Enqueue, Dequeue, Delivery, Step, Ack, Nack, End, Redrive, Told, Look, Crash, Loss)
}


class Log:
    """The log of one client. Thread-safe; each event is in the file when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def add(self, events: Iterable[Event]) -> None:
        lines = "".join(json.dumps([type(event).__name__, *event]) + "\n" for event in events)
        with self._lock:
            self._file.write(lines)

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> list[Event]:
    """The events of all logs in `folder`, by the time they began."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        events += [_event(line) for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event.began)


def _event(line: str) -> Event:
    name, *fields = json.loads(line)
    kind = _KINDS[name]
    if "answer" in kind._fields:
        fields[kind._fields.index("answer")] = Answer(fields[kind._fields.index("answer")])
    event: Event = kind(*(tuple(field) if isinstance(field, list) else field for field in fields))
    return event


def pack(key: str, filler_bytes: int) -> bytes:
    body = key.encode() + b"\0" + b"." * filler_bytes
    return zlib.crc32(body).to_bytes(4, "big") + body


def key_of(payload: bytes) -> str:
    """Raises ValueError for a payload that `pack` did not make."""
    checksum, body = payload[:4], payload[4:]
    if int.from_bytes(checksum, "big") != zlib.crc32(body):
        raise ValueError(f"a payload was altered: {payload[:60]!r}")
    return body.partition(b"\0")[0].decode()
