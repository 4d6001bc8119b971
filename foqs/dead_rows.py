"""Dead letters as a shard's database has them: what a store reads of its table `failure`, in that table's order."""

from __future__ import annotations

from typing import NamedTuple

from foqs.rows import FailureRow, ReadyRow, TimerRow

FailurePosition = tuple[int, int]
"""The order of a lane's rows in `failure`: (fingerprint, id)."""


class FailureGroup(NamedTuple):
    """The dead letters of a lane with the same fingerprint and cause; the sample is one of them."""

    fingerprint: int
    cause: int
    items: int
    first_died_at_ms: int
    last_died_at_ms: int
    sample_id: int
    sample_reason: bytes


class FailureGroups(NamedTuple):
    """The groups of a range of rows, by (fingerprint, cause). Rows behind `next` may belong to the last groups, too;
    None: there are no more."""

    groups: list[FailureGroup]
    next: FailurePosition | None


class DeadRow(NamedTuple):
    """A dead letter without its body; one of `ready` and `timer` is set. `headers` is what the item has stored."""

    failure: FailureRow
    priority: int
    deliver_after_ms: int
    expires_at_ms: int
    headers: bytes | None
    ready: ReadyRow | None
    timer: TimerRow | None


class DeadPage(NamedTuple):
    """`next` is the position of the last row that was looked at; None: there are no rows behind it."""

    rows: list[DeadRow]
    next: FailurePosition | None
