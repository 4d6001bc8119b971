"""The report as one self-contained HTML page: no script, no font, no link.

Users choose the names of namespaces and topics: all text passes `escape`, and names are inside <bdi>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape

from foqs.spark.jobs.charts import bars, spark, split
from foqs.spark.jobs.style import STYLE
from foqs.spark.jobs.summary import STATES, Figures, Report, Spread, Topic
from foqs.spark.jobs.words import age_labels, duration, many, moment, number, priority_labels, size, size_labels

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
        f"<title>foqs report, {moment(report.now_ms)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{_lines(body)}</main></body></html>\n"
    )


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
    bar = split("Items by state", _parts(total), total.items, 1000, 26)
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
        ("", split(words, _parts(figures), largest)),
        *(("n", number(getattr(figures, state))) for state in STATES),
        ("", spark("Items by age, the youngest first", figures.ages, "age")),
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
