"""Store rows that are equal to rows of other partitions, however Spark divides a batch into partitions.

With the keys of `dedupKeys=row`, each task numbers its equal rows 0, 1, 2 and so on. The service takes equal rows of
two tasks for two attempts at the same rows. If one task has 2 and another 3 of them, the service stores the numbers 0
to 2. The driver knows the rows that all tasks sent, and stores the missing numbers 3 and 4. So the keys depend on the
rows of a batch only, and a repetition with other partitions stores nothing again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from foqs.client import ItemSpec
from foqs.errors import Invalid
from foqs.spark.write_counts import RowCounts

KEPT_BYTES = 8 << 20
_KEY = re.compile(r"(?P<digest>[0-9a-f]{32}):[0-9]+", re.ASCII)
_HASH_DIGITS = 16


def short_hash(digest: bytes) -> int:
    """Digest of a row in memory: its first 8 bytes."""
    return int.from_bytes(digest[: _HASH_DIGITS // 2], "big")


@dataclass
class Sent:
    """What one task sent with keys made of rows.

    hashes   8 bytes for each distinct row
    repeats  how many rows are equal, where more than one is
    kept     an item for each distinct row that the service knew before; at most KEPT_BYTES of them
    """

    hashes: bytes
    repeats: dict[int, int]
    kept: dict[int, ItemSpec] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: RowCounts, kept: dict[int, ItemSpec]) -> Sent:
        return cls(counts.hashes(), counts.repeats(), kept)


class Known:
    """Collects in a task the rows that the service knew before: one for each content."""

    def __init__(self, scope: str) -> None:
        """`scope`: how the made keys begin. Rows with keys of the frame's own are not collected."""
        self._prefix = f"{scope}:"
        self._left_bytes = KEPT_BYTES
        self.kept: dict[int, ItemSpec] = {}

    def hash_of(self, spec: ItemSpec) -> int | None:
        """None when the key of `spec` was not made."""
        key = spec.dedup_key
        if key is None or not key.startswith(self._prefix):
            return None
        found = _KEY.fullmatch(key, len(self._prefix))
        return None if found is None else int(found["digest"][:_HASH_DIGITS], 16)

    def add(self, spec: ItemSpec) -> None:
        row = self.hash_of(spec)
        if row is not None and row not in self.kept and spec.size_bytes <= self._left_bytes:
            self._left_bytes -= spec.size_bytes
            self.kept[row] = spec


def missing(tasks: Sequence[Sent]) -> Iterator[ItemSpec]:
    """Return the items that no task sent, because all tasks number equal rows alike. Raises Invalid if a needed row was
    not kept."""
    shared = _in_several([task.hashes for task in tasks])
    if not len(shared):
        return
    counts: defaultdict[int, list[int]] = defaultdict(list)
    kept: dict[int, ItemSpec] = {}
    for task in tasks:
        hashes = _column(task.hashes)
        for row in hashes.filter(pc.is_in(hashes, value_set=shared)).to_pylist():
            counts[row].append(task.repeats.get(row, 1))
            if row in task.kept:
                kept[row] = task.kept[row]
    if unknown := sum(sum(counts[row]) - max(counts[row]) for row in counts.keys() - kept.keys()):
        raise Invalid(
            f"{unknown} rows are equal to rows of other partitions, and are not stored: the tasks kept "
            f"{KEPT_BYTES >> 20} MiB of such rows, and these are more. Bring equal rows into one partition "
            "(frame.repartition('payload')) and write the frame, or start the query, again: no row is stored twice"
        )
    for row, found in counts.items():
        spec = kept[row]
        prefix = str(spec.dedup_key).rpartition(":")[0]
        for number in range(max(found), sum(found)):
            yield replace(spec, dedup_key=f"{prefix}:{number}")


def _in_several(parts: Iterable[bytes]) -> pa.Array:
    # Sorted: that takes a fifth of the memory of a counter.
    found = pa.concat_arrays([pa.array([], pa.uint64()), *map(_column, parts)])
    found = found.take(pc.sort_indices(found))
    return pc.unique(found[1:].filter(pc.equal(found[1:], found[:-1])))


def _column(hashes: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), len(hashes) // 8, [None, pa.py_buffer(hashes)])
