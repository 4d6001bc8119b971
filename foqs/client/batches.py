"""What a batch of items is to its callers, and the checks of arguments about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foqs.checks import refuse
from foqs.client.arguments import check_item, instance_of
from foqs.client.items import ItemSpec
from foqs.enums import known
from foqs.errors import Invalid
from foqs.item_batch import BatchState, Counts


class BatchCounts(Counts):
    """How many `members` a batch has, and how many of these have ended, by how they ended; `ended`: all of these."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its home knows it: `counts` follow its members with a delay of about 0.3 s.

    `*_at_ms` are Unix epoch milliseconds of the server's clock. `ended_at_ms` is None while the batch lives: also of a
    CANCELLED one, while consumers have members. `parent`: the batch of which it is a member. `failed_ids`: the first
    100 members that failed. `success_id`, `end_id`: the items that were stored at its end.
    """

    id: int
    state: BatchState
    created_at_ms: int
    expires_at_ms: int
    ended_at_ms: int | None
    parent: int | None
    counts: BatchCounts
    failed_ids: tuple[int, ...]
    success_id: int | None
    end_id: int | None

    @property
    def ended(self) -> bool:
        return self.ended_at_ms is not None

    @classmethod
    def of(cls, found: Any) -> Batch:
        """Return the batch of a GetBatchResponse."""
        counts = BatchCounts(*[getattr(found.counts, name) or 0 for name in Counts._fields])
        return cls(
            found.id, known(BatchState, found.state), found.created_at_ms, found.expires_at_ms, found.ended_at_ms,
            found.parent, counts, tuple(found.failed_ids or ()), found.success_id, found.end_id,
        )  # fmt: skip


def check_batch(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        refuse(name, value, "it must be the id of a batch, an integer or its text")


def check_parent(name: str, value: object) -> None:
    if value is not None:
        check_batch(name, value)


def check_callback(name: str, value: object) -> None:
    """Check an item that a batch enqueues at its end."""
    instance_of(ItemSpec, none=True)(name, value)
    if isinstance(value, ItemSpec):
        try:
            check_item(value)
        except Invalid as error:
            raise Invalid(f"{name}: {error.message}") from None
