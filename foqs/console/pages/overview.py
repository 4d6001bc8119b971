"""The first page: the verdict about the cluster, items by state, and rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from foqs.client import NamespaceRates, Rates
from foqs.console.reasons import ready_words, verdict_link
from foqs.console.sessions import named_in
from foqs.console.view import Page, View
from foqs.doctor.system import Facts
from foqs.doctor.verdict import judge

MOST_NAMESPACES = 50
KINDS = (("enqueued", "hue-1"), ("delivered", "hue-2"), ("acked", "hue-3"), ("failed", "hue-4"))
"""The lines of the chart, and their colours."""
_MINUTE = 6
"""Steps of a minute: a point of the chart."""


async def load(view: View) -> Mapping[str, Any]:
    status, everywhere, own = await asyncio.gather(
        view.allowed(view.client.status()),
        view.client.rates(all_namespaces=True, steps=_MINUTE, limit=MOST_NAMESPACES),
        view.client.rates(with_items=True),
    )
    facts = None if status is None else Facts(status.hosts, status.missing)
    verdict = None if facts is None else judge(facts)
    others = sorted(one.ns for one in everywhere.namespaces if one.ns != view.ns)
    view.session.namespaces = list(dict.fromkeys([view.ns, *named_in(view.session.info), *others]))
    return {
        "facts": facts,
        "verdict": verdict,
        "reasons": [] if verdict is None else [(one, verdict_link(view, one)) for one in verdict.reasons],
        "items": _first(own),
        "ready": _ready(_first(own)),
        "rates": own,
        "chart": chart_of(own),
        "now": [(kind, per_second(own, kind)) for kind, _ in KINDS],
        "everywhere": [(one.ns, [sum(getattr(one, kind)) for kind, _ in KINDS]) for one in everywhere.namespaces],
        "elsewhere": bool(others),
        "more_namespaces": everywhere.more,
    }


def _ready(items: NamespaceRates) -> str:
    """Return what holds the ready items."""
    return ready_words(items.ready or 0, items.ready_paused, items.ready_throttled, items.ready_dead or 0)


def chart_of(rates: Rates) -> tuple[list[str], list[tuple[str, str, list[int]]]]:
    """Return the labels and the lines of the chart: a point a minute, in items a minute."""
    found = _first(rates)
    starts = range(rates.first_at_ms, rates.first_at_ms + len(found.enqueued) * rates.step_ms, _MINUTE * rates.step_ms)
    labels = [datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M") for at_ms in starts]
    return labels, [(kind, colour, _sums(getattr(found, kind))) for kind, colour in KINDS]


def _sums(counts: Sequence[int]) -> list[int]:
    return [sum(counts[at : at + _MINUTE]) for at in range(0, len(counts), _MINUTE)]


def per_second(rates: Rates, kind: str) -> float:
    """Return the mean of the last minute, in items a second."""
    last = getattr(_first(rates), kind)[-_MINUTE:]
    return sum(last) * 1_000 / (rates.step_ms * len(last)) if last else 0.0


def _first(rates: Rates) -> NamespaceRates:
    return rates.namespaces[0] if rates.namespaces else NamespaceRates("")


PAGE = Page("/", "Overview", "overview.html", load, key="o")
