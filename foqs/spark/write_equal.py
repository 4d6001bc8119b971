"""Store rows that are equal to rows of other partitions, however Spark divides a batch into partitions.

With the keys of `dedupKeys=row`, each task numbers its equal rows 0, 1, 2 and so on. The service takes equal rows of
two tasks for two attempts at the same rows. If one task has 2 and another 3 of them, the service stores the numbers 0
to 2. The driver knows the rows that all tasks sent, and stores the missing numbers 3 and 4. So the keys depend on the
rows of a batch only, and a repetition with other partitions stores nothing again. The bodies of such rows come from the
tasks: see `write_known`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from foqs.client import ItemSpec
from foqs.errors import Invalid
from foqs.spark.write_counts import RowCounts
from foqs.spark.write_known import KEPT_BYTES, Kept, read_kept


@dataclass
class Sent:
    """What one task sent with keys made of rows.

    hashes   8 bytes for each distinct row
    repeats  how many rows are equal, where more than one is
    kept     the rows that the service knew before
    """

    hashes: bytes
    repeats: dict[int, int]
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def of(cls, counts: RowCounts, kept: Kept) -> Sent:
        return cls(counts.hashes(), counts.repeats(), kept)


def missing(
    tasks: Sequence[Sent], read: Callable[[str], Iterator[tuple[int, ItemSpec]]] = read_kept
) -> Iterator[ItemSpec]:
    """Yield the items that no task sent, because all tasks number equal rows alike. One row of each task's file is in
    memory at a time. Raises Invalid at the end if a needed row was not kept."""
    needed = _needed(tasks)
    for task in tasks:
        for row in needed.keys() & task.kept.rows.keys():
            yield from _numbered(task.kept.rows[row], *needed.pop(row))
    why = [task.kept.why for task in tasks if task.kept.why]
    for task in tasks:
        if not needed or task.kept.file is None:
            continue
        try:
            for row, spec in read(task.kept.file):
                if row in needed:
                    yield from _numbered(spec, *needed.pop(row))
        except OSError as error:
            why.append(f"the driver could not read what a task kept: {error}")
    if needed:
        lost = sum(total - most for most, total in needed.values())
        raise Invalid(
            f"{lost} rows are equal to rows of other partitions, and are not stored. A task reports {KEPT_BYTES >> 20} "
            f"MiB of such rows, and these are more{': ' if why else ''}{why[0] if why else ''}. Set the option "
            "equalRowsPath to a folder or URL that the driver and all tasks can use, or bring equal rows into one "
            "partition (frame.repartition('payload')). Then write the frame, or start the query, again: no row is "
            "stored twice"
        )


def _numbered(spec: ItemSpec, most: int, total: int) -> Iterator[ItemSpec]:
    prefix = str(spec.dedup_key).rpartition(":")[0]
    for number in range(most, total):
        yield replace(spec, dedup_key=f"{prefix}:{number}")


def _needed(tasks: Sequence[Sent]) -> dict[int, tuple[int, int]]:
    """Return the rows of several tasks: the most equal ones of a task, and of all tasks together."""
    needed: dict[int, tuple[int, int]] = {}
    shared = _in_several([task.hashes for task in tasks])
    if not len(shared):
        return needed
    for task in tasks:
        hashes = _column(task.hashes)
        for row in hashes.filter(pc.is_in(hashes, value_set=shared)).to_pylist():
            count = task.repeats.get(row, 1)
            most, total = needed.get(row, (0, 0))
            needed[row] = max(most, count), total + count
    return needed


def _in_several(parts: Iterable[bytes]) -> pa.Array:
    # Sorted: that takes a fifth of the memory of a counter.
    found = pa.concat_arrays([pa.array([], pa.uint64()), *map(_column, parts)])
    found = found.take(pc.sort_indices(found))
    return pc.unique(found[1:].filter(pc.equal(found[1:], found[:-1])))


def _column(hashes: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), len(hashes) // 8, [None, pa.py_buffer(hashes)])
