"""The batches of a consuming stream, and the consequences of an offset that Spark names. Pure decisions.

Batches are numbered from 1. The offset n means "the batches 1 to n". A batch is in the ledger from the lease of its
items until its acks are settled. Batches up to `committed` have reached their sink and only wait for their acks.

A query delivers an item in one batch. If a lease ends before the ack, the service delivers the item again, perhaps to
the same query: `Again` has the newest lease then, and the item gets no second batch.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

from foqs.client.items import Item
from foqs.errors import Invalid

_FORMAT = 1
NEW_START = (
    "start with a new checkpointLocation and a new stateDir; leased items are delivered again when their leases end"
)
MOST_DELIVERED = 1_000_000
"""Delivered items with a refused ack that a query remembers."""
_AGAIN_HEAD = b"foqs again 1\n"


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
