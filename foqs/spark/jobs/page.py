"""The report as values, and as one self-contained HTML page: no script, no font, no link.

Charts are inline SVG with text for screen readers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from foqs.page.environment import environment, stylesheet
from foqs.page.words import NOTHING, duration, number, short_number, size

if TYPE_CHECKING:
    from jinja2 import Template

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
        """Make them of a row of `report.figures`."""
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


def render(report: Report) -> str:
    """Return the document, drawn by `report.html`. Its length grows with `report.topics` only.

    Raises Invalid without Jinja2.
    """
    filled = [position for position, count in enumerate(report.total.priorities) if count] or [0]
    text: str = template().render(
        report=report,
        # The priorities from the first to the last one with items, and one more on each side.
        first=max(0, filled[0] - 1),
        last=filled[-1] + 2,
    )
    return text


@functools.cache
def template() -> Template:
    """Read the template of the page. Raises Invalid without Jinja2."""
    made = environment("foqs.spark.jobs")
    made.filters |= {"spread": spread, "in_states": in_states}
    made.globals |= {
        "states": STATES, "size": size, "duration": duration, "style": stylesheet(), "age_labels": age_labels(),
        "size_labels": size_labels(), "priority_labels": priority_labels(),
    }  # fmt: skip
    return made.get_template("report.html")


# ------------------------------------------------------------------------------------------ words


def spread(found: Spread | None, words: Callable[[int], str]) -> str:
    """Return all of it in one line."""
    names = Spread.__slots__
    return " · ".join(f"{name} {NOTHING if found is None else words(getattr(found, name))}" for name in names)


def in_states(figures: Figures) -> str:
    return ", ".join(f"{number(getattr(figures, state))} {state}" for state in STATES)


def age_labels() -> list[str]:
    return [f"<{duration(bound)}" for bound in AGES_MS[1:]] + [f"≥{duration(AGES_MS[-1])}"]


def size_labels() -> list[str]:
    return [f"<{size(bound)}" for bound in SIZES_BYTES[1:]] + [f"≥{size(SIZES_BYTES[-1])}"]


def priority_labels() -> list[str]:
    """Return a priority's label: exact values unchanged, ranges by the end nearer to 0."""
    labels = []
    for low, after in zip(PRIORITIES, (*PRIORITIES[1:], None), strict=True):
        if after is not None and after == low + 1:
            labels.append(str(low))
        elif low < 0:
            labels.append("≤-" + short_number(1 - (after or 0)))
        else:
            labels.append("≥" + short_number(low))
    return labels
