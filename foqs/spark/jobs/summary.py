"""The content of a report as plain values: a few numbers for each topic, for any number of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

STATES = ("ready", "delayed", "leased")

# A histogram is a tuple of counts. Bucket n has the values from its n-th bound to below the next bound.
AGES_MS = (0, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000, 2_592_000_000)
SIZES_BYTES = (0, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
# A producer may use any number of priorities: exact for small ones, powers of ten beyond.
PRIORITIES = (
    -(1 << 31),
    *(1 - 10**power for power in range(9, 1, -1)),
    *range(-9, 10),
    *(10**power for power in range(1, 10)),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Approximate percentiles and the exact maximum, in the unit of the measured values."""

    p50: int
    p90: int
    p99: int
    max: int

    @classmethod
    def of(cls, row: Any) -> Self | None:
        """Return None if no value was measured."""
        return None if row is None or row["max"] is None else cls(*(int(row[name]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the items of one topic, or of all.

    age       ms since the enqueue
    wait      ms since it may be delivered, of items that are ready; None without such
    size      bytes of payload, metadata and headers; `bytes` is their sum, `payload_bytes` that of payloads alone
    attempts  deliveries so far: mean, highest, and how many items had more than one
    ages, priorities, sizes  histograms over AGES_MS, PRIORITIES, SIZES_BYTES
    """

    items: int
    ready: int
    delayed: int
    leased: int
    age: Spread | None
    wait: Spread | None
    size: Spread | None
    bytes: int
    payload_bytes: int
    attempts_mean: float
    attempts_max: int
    attempts_repeated: int
    ages: tuple[int, ...]
    priorities: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, row: Any) -> Self:
        """Of a row as `report.figures` makes it."""
        return cls(
            row["items"],
            row["ready"],
            row["delayed"],
            row["leased"],
            Spread.of(row["age_ms"]),
            Spread.of(row["wait_ms"]),
            Spread.of(row["item_bytes"]),
            row["total_bytes"] or 0,
            row["total_payload_bytes"] or 0,
            row["attempts"]["mean"] or 0.0,
            row["attempts"]["max"] or 0,
            row["attempts"]["repeated"] or 0,
            _counts(row["age_histogram"], AGES_MS),
            _counts(row["priority_histogram"], PRIORITIES),
            _counts(row["size_histogram"], SIZES_BYTES),
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """`oldest`: ids and times of enqueue (Unix epoch, ms), the oldest first."""

    namespace: str
    topic: str
    figures: Figures
    oldest: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """`topics` are the `top` ones by number of items, of `topic_count` that there are; `total` is over all.

    `now_ms` (Unix epoch) is when the snapshot was looked at.
    """

    now_ms: int
    total: Figures
    namespace_count: int
    topic_count: int
    topics: tuple[Topic, ...]

    @property
    def rest(self) -> Mapping[str, int]:
        """Return items, states and bytes of the topics that are not shown, summed."""
        return {
            name: getattr(self.total, name) - sum(getattr(topic.figures, name) for topic in self.topics)
            for name in ("items", *STATES, "bytes")
        }


def _counts(buckets: Sequence[Any], bounds: Sequence[int]) -> tuple[int, ...]:
    """Return a histogram; `buckets` lacks the buckets without items."""
    found = {bucket["low"]: bucket["items"] for bucket in buckets}
    return tuple(found.get(low, 0) for low in bounds)
