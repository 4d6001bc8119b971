"""The report as values, and as one self-contained HTML page: no script, no font, no link.

Users choose the names of namespaces and topics: all text passes `escape`, and names are inside <bdi>. Charts are inline
SVG with text for screen readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, Self

from foqs.spark.jobs.command import many, number, short, size

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


_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_NOTHING = "–"
_COLUMNS = (
    ("Namespace", ""),
    ("Topic", ""),
    ("Items", "n"),
    ("States", ""),
    ("Ready", "n"),
    ("Delayed", "n"),
    ("Leased", "n"),
    ("Ages", ""),
    ("Age p50", "n"),
    ("Age p99", "n"),
    ("Wait p50", "n"),
    ("Wait p99", "n"),
    ("Size p50", "n"),
    ("Bytes", "n"),
    ("Retried", "n"),
)
_WIDTH, _HEIGHT = 460, 190
_TOP, _BOTTOM = 20, 24


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
    """Return the whole document as text. Its length grows with `report.topics` only."""
    body = (
        _head(report),
        _overview(report.total),
        *((_topics(report), _oldest(report)) if report.topics else ('<p class="none">Nothing is queued.</p>',)),
        "<footer><p>Percentiles are approximate; counts, sums and maxima are exact. Age counts from the enqueue, wait "
        "from when an item may be delivered. Retried: delivered more than once. Shards are read one by one, so an item "
        "that moved during the reading may be counted as it was a moment before.</p></footer>",
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>foqs report, {moment(report.now_ms)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{_lines(body)}</main></body></html>\n"
    )


def _style() -> str:
    return (files("foqs.spark.jobs") / "page.css").read_text(encoding="utf-8")


def _head(report: Report) -> str:
    total = report.total
    where = f"{many(report.topic_count, 'topic')}, {many(report.namespace_count, 'namespace')}"
    states = [(state, getattr(total, state)) for state in STATES]
    cards = (
        ("Items", number(total.items), where),
        *((state.capitalize(), number(count), _share(count, total.items)) for state, count in states),
        ("Longest wait", _of(total.wait, "max", duration), f"half wait less than {_of(total.wait, 'p50', duration)}"),
        ("Size", size(total.bytes), f"{size(total.payload_bytes)} of payload"),
        ("Retried", number(total.attempts_repeated), f"at most {many(total.attempts_max, 'delivery', 'deliveries')}"),
    )
    shown = "".join(
        f'<div class="card"><dt>{escape(name)}</dt><dd><b>{escape(value)}</b><small>{escape(note)}</small></dd></div>'
        for name, value, note in cards
    )
    return (
        f'<header><h1>Queued items</h1><p class="time">foqs, as of <time>{moment(report.now_ms)}</time></p></header>'
        f'<dl class="cards">{shown}</dl>'
    )


def _overview(total: Figures) -> str:
    if not total.items:
        return ""
    first, last = _span(total.priorities)
    figures = (
        _figure("Age", _spread(total.age, duration), bars("Items by age", age_labels(), total.ages, "age")),
        _figure(
            "Priority",
            "lower is more urgent",
            bars("Items by priority", priority_labels()[first:last], total.priorities[first:last], "priority"),
        ),
        _figure("Size", _spread(total.size, size), bars("Items by size", size_labels(), total.sizes, "size")),
    )
    return f'{_states(total)}<section class="charts">{"".join(figures)}</section>'


def _states(total: Figures) -> str:
    legend = "".join(
        f'<li><i class="{state}"></i>{state} <b>{number(getattr(total, state))}</b> '
        f"<small>{escape(_share(getattr(total, state), total.items))}</small></li>"
        for state in STATES
    )
    bar = split_bar("Items by state", _parts(total), total.items, 1000, 26)
    return f'<section class="states"><h2>States</h2>{bar}<ul class="legend">{legend}</ul></section>'


def _figure(name: str, note: str, chart: str) -> str:
    return f"<figure><figcaption><h2>{escape(name)}</h2><p>{escape(note)}</p></figcaption>{chart}</figure>"


def _topics(report: Report) -> str:
    largest = max(topic.figures.items for topic in report.topics)
    heads = "".join(f'<th scope="col"{_kind(kind)}>{escape(name)}</th>' for name, kind in _COLUMNS)
    rows = [_row(topic, largest) for topic in report.topics]
    if hidden := report.topic_count - len(report.topics):
        rows.append(_rest(hidden, report.rest))
    shown = f"the {number(len(report.topics))} with the most items of {number(report.topic_count)}"
    note = shown if hidden else "the largest first"
    return (
        f'<section class="wide"><h2>Topics</h2><p>{note}</p><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{_lines(rows)}</tbody></table></section>"
    )


def _row(topic: Topic, largest: int) -> str:
    figures = topic.figures
    words = ", ".join(f"{number(getattr(figures, state))} {state}" for state in STATES)
    cells = (
        ("name", _name(topic.namespace)),
        ("name", _name(topic.topic)),
        ("n", number(figures.items)),
        ("", split_bar(words, _parts(figures), largest)),
        *(("n", number(getattr(figures, state))) for state in STATES),
        ("", sparkline("Items by age, the youngest first", figures.ages, "age")),
        ("n", _of(figures.age, "p50", duration)),
        ("n", _of(figures.age, "p99", duration)),
        ("n", _of(figures.wait, "p50", duration)),
        ("n", _of(figures.wait, "p99", duration)),
        ("n", _of(figures.size, "p50", size)),
        ("n", size(figures.bytes)),
        ("n", number(figures.attempts_repeated)),
    )
    return "<tr>" + "".join(f"<td{_kind(kind)}>{text}</td>" for kind, text in cells) + "</tr>"


def _rest(hidden: int, rest: Mapping[str, int]) -> str:
    counts = "".join(f'<td class="n">{number(rest[state])}</td>' for state in STATES)
    unknown = f'<td class="n">{_NOTHING}</td>'
    return (
        f'<tr class="rest"><td colspan="2">{many(hidden, "other topic")}</td>'
        f'<td class="n">{number(rest["items"])}</td><td></td>{counts}<td></td>{unknown * 5}'
        f'<td class="n">{size(rest["bytes"])}</td>{unknown}</tr>'
    )


def _oldest(report: Report) -> str:
    rows = []
    for topic in report.topics:
        items = "".join(
            f"<li><code>{item_id}</code> <small>{duration(max(0, report.now_ms - at_ms))}</small></li>"
            for item_id, at_ms in topic.oldest
        )
        if items:
            names = f'<td class="name">{_name(topic.namespace)}</td><td class="name">{_name(topic.topic)}</td>'
            rows.append(f'<tr>{names}<td><ul class="ids">{items}</ul></td></tr>')
    if not rows:
        return ""
    return (
        '<section class="wide"><h2>Oldest items</h2><p>ids, and how long ago they were enqueued</p><table>'
        '<thead><tr><th scope="col">Namespace</th><th scope="col">Topic</th><th scope="col">Items</th></tr></thead>'
        f"<tbody>{_lines(rows)}</tbody></table></section>"
    )


# ------------------------------------------------------------------------------------------ words


def _parts(figures: Figures) -> list[tuple[str, int]]:
    return [(state, getattr(figures, state)) for state in STATES]


def _span(counts: tuple[int, ...]) -> tuple[int, int]:
    """Return the range from the first to the last bucket with items, and one more on each side."""
    filled = [position for position, count in enumerate(counts) if count]
    return max(0, filled[0] - 1), min(len(counts), filled[-1] + 2)


def _of(spread: Spread | None, which: str, words: Callable[[int], str]) -> str:
    return _NOTHING if spread is None else words(getattr(spread, which))


def _spread(spread: Spread | None, words: Callable[[int], str]) -> str:
    """Return all of it in one line."""
    return " · ".join(f"{name} {_of(spread, name, words)}" for name in ("p50", "p90", "p99", "max"))


def _share(part: int, whole: int) -> str:
    if not whole:
        return _NOTHING
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def _name(name: str) -> str:
    return f'<bdi title="{escape(name)}">{escape(name)}</bdi>'


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def duration(ms: int) -> str:
    """
    >>> duration(0), duration(90_000), duration(93_600_000)
    ('0', '1.5 min', '1.1 d')
    """
    for unit, unit_ms in _UNITS_MS:
        if ms >= unit_ms:
            return f"{short(ms / unit_ms)} {unit}"
    return "0"


def short_number(count: int) -> str:
    """For the labels of a chart.

    >>> short_number(999), short_number(12_345), short_number(1_250_000)
    ('999', '12k', '1.2M')
    """
    for unit, factor in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= factor:
            return f"{short(count / factor)}{unit}"
    return str(count)


def moment(ms: int) -> str:
    """Unix epoch milliseconds, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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


# ------------------------------------------------------------------------------------------ charts


def bars(title: str, labels: Sequence[str], counts: Sequence[int], colour: str) -> str:
    """Draw a histogram; a screen reader reads `title`. `colour` is a class of the page."""
    highest = max(counts, default=0) or 1
    step = _WIDTH / max(len(counts), 1)
    room = _HEIGHT - _TOP - _BOTTOM
    floor = _HEIGHT - _BOTTOM
    # A label needs about 46 units: with more bars, only every second or third has a label.
    every = max(1, -(-46 // int(max(step, 1))))
    drawn = [f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{floor}" y2="{floor}"/>']
    for position, (label, count) in enumerate(zip(labels, counts, strict=True)):
        height = _height(count, highest, room)
        left, middle = position * step, (position + 0.5) * step
        drawn.append(
            f'<g><title>{escape(label)}: {number(count)}</title><rect class="{colour}" x="{left + step * 0.12:.1f}" '
            f'y="{floor - height:.1f}" width="{step * 0.76:.1f}" height="{height:.1f}" rx="1.5"/></g>'
        )
        if count and step >= 22:
            drawn.append(_text(middle, floor - height - 5, short_number(count), "value"))
        if position % every == 0:
            drawn.append(_text(middle, _HEIGHT - 7, label, "label"))
    return _svg(title, _WIDTH, _HEIGHT, drawn, "chart")


def split_bar(title: str, parts: Sequence[tuple[str, int]], whole: int, width: int = 100, height: int = 10) -> str:
    """Draw the parts of `whole` in one bar: pairs of a class and a count."""
    drawn, left = [f'<rect class="empty" x="0" y="0" width="{width}" height="{height}"/>'], 0.0
    for colour, count in parts:
        part = width * count / whole if whole else 0.0
        if count:
            part = max(part, 1.0)  # a small part stays visible
            drawn.append(f'<rect class="{colour}" x="{left:.1f}" y="0" width="{part:.1f}" height="{height}"/>')
        left += part
    return _svg(title, width, height, drawn, "spark")


def sparkline(title: str, counts: Sequence[int], colour: str, width: int = 72, height: int = 20) -> str:
    """Draw a histogram as small as a word."""
    highest = max(counts, default=0) or 1
    step = width / max(len(counts), 1)
    drawn = [f'<line class="axis" x1="0" x2="{width}" y1="{height - 0.5}" y2="{height - 0.5}"/>']
    for position, count in enumerate(counts):
        if tall := _height(count, highest, height - 1):
            drawn.append(
                f'<rect class="{colour}" x="{position * step + 0.5:.1f}" y="{height - 1 - tall:.1f}" '
                f'width="{step - 1:.1f}" height="{tall:.1f}"/>'
            )
    return _svg(title, width, height, drawn, "spark")


def _height(count: int, highest: int, room: float) -> float:
    """Return a height; a count above 0 is always visible."""
    return max(1.5, room * count / highest) if count else 0.0


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(words)}</text>'


def _svg(title: str, width: int, height: int, drawn: Sequence[str], kind: str) -> str:
    fit = "xMidYMid" if kind == "chart" else "none"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'preserveAspectRatio="{fit}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )
