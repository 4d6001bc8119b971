"""What a page shows of the reasons that the service gives: the page about each, and the root cause for a row."""

from __future__ import annotations

from typing import NamedTuple

from foqs.client import ExplainLimit, ExplainReason, Explanation, LimitKind, Reason
from foqs.console.view import View, path_of
from foqs.doctor.verdict import Reason as Trouble
from foqs.page.words import duration


class Link(NamedTuple):
    """`text` may have names that users chose."""

    text: str
    url: str


class Shown(NamedTuple):
    """`until_ms`: when the reason ends by itself, Unix epoch; None if that is not known."""

    text: str
    links: tuple[Link, ...] = ()
    until_ms: int | None = None


_QUEUES = (Reason.BEHIND_IN_LANE, Reason.BEHIND_IN_TURN, Reason.NOT_LOADED)
"""Reasons that only name the items that come first: what holds those is the cause."""
_LIMITS: dict[int, Reason] = {
    LimitKind.RATE: Reason.THROTTLED,
    LimitKind.CONCURRENCY: Reason.CONCURRENCY,
    LimitKind.PER_WORKER: Reason.PER_WORKER,
    LimitKind.FAIR_SHARE: Reason.BEHIND_IN_TURN,
}
_THROTTLES = (LimitKind.RATE, LimitKind.CONCURRENCY)


def shown(view: View, found: Explanation, topic: str) -> list[Shown]:
    """Return the reasons with links to the pages about them."""
    return [_shown(view, found, one, topic) for one in found.reasons]


def _shown(view: View, found: Explanation, one: ExplainReason, topic: str) -> Shown:
    until_ms = one.until_ms if found.wait_ms(one) is None else None  # else the time of the next token, for any item
    is_first_delay = one.code == Reason.DELAYED and found.state is not None and found.last_failure is None
    leads = () if is_first_delay else links(view, one.code, one.key, topic)
    return Shown(one.text, leads, until_ms)


def root_cause(view: View, found: Explanation, topic: str) -> Shown:
    """Return what a row shows of an item that waits: a condition, else the throttle with the longest wait, else the
    items that come first."""
    one = next((one for one in found.reasons if one.code not in _QUEUES), None)
    slowest = max((one for one in found.limits if _waits(one)), key=lambda one: one.estimate_ms or 0, default=None)
    if one is None and slowest is not None:
        return Shown(f"Throttle key {slowest.key!r}: {slowest.text}", limit_links(view, slowest, topic))
    if one is None and found.reasons:
        one = found.reasons[0]
    if one is None:
        return Shown("nothing keeps it from being delivered now")
    cause = _shown(view, found, one, topic)
    if found.eta_ms is not None:
        cause = cause._replace(text=f"{cause.text} Delivered in about {duration(found.eta_ms)}.")
    return cause


def _waits(one: ExplainLimit) -> bool:
    return one.kind in _THROTTLES and bool(one.estimate_ms) and not one.shadow


def limit_links(view: View, one: ExplainLimit, topic: str) -> tuple[Link, ...]:
    """Return links to the pages about a limit."""
    return links(view, _LIMITS.get(one.kind, 0), one.key, topic)


def links(view: View, code: int, key: str | None, topic: str) -> tuple[Link, ...]:
    """Return links to the pages about a reason that concerns items of `topic`. `key` as in the contract's Reason."""
    own, consumers = Link(f"topic {topic}", view.topic_url(topic)), view.url("/consumers", topic=topic)
    found: list[Link] = []
    match code:
        case Reason.THROTTLED | Reason.CONCURRENCY:
            found = [Link(f"throttle {key}", view.url("/throttles", prefix=(key or "").removesuffix("*")))]
        case Reason.PAUSED | Reason.GONE if key:
            found = [*_entry(view, key), own]
        case Reason.PER_WORKER if key:
            found = [Link("consumers of the topic", consumers), *_entry(view, key)]
        case Reason.LEASED | Reason.NO_CONSUMER:
            found = [Link("consumers of the topic", consumers)]
        case Reason.DELAYED | Reason.BEHIND_IN_TURN:
            found = [own]
        case Reason.EXHAUSTED if key:
            found = [Link(f"dead letters of {key}", view.url("/dead", topic=key))]
        case Reason.BEHIND_IN_ORDER if key:
            found = [Link(f"order key {key}", view.url("/order-key", topic=topic, key=key))]
        case Reason.BEHIND_IN_ORDER:
            found = [Link("leased items of the topic", view.url("/items", topic=topic, state="leased"))]
        case Reason.BEHIND_IN_LANE:
            found = [Link("ready items of the topic", view.url("/items", topic=topic, state="ready"))]
        case Reason.SHARD_NOT_SERVED | Reason.CLOCK_IN_DOUBT | Reason.OWNER_IN_GRACE | Reason.BREAKER_OPEN:
            found = [Link("hosts", view.url("/hosts"))]
    return tuple([one for one in found if one.url != view.here])


def _entry(view: View, key: str) -> list[Link]:
    return [
        Link(f"entry {key}", view.url("/settings/entry", key=key)),
        Link("its changes", view.url("/changes", prefix=key)),
    ]


def ready_words(ready: int, paused: int | None, throttled: int | None, dead: int = 0) -> str:
    """Return how many of the ready items nothing holds back, and what holds the rest. None: a host did not count it.

    >>> ready_words(9, 2, 3), ready_words(1_000, 0, 0, 20), ready_words(5, None, None)
    ('4 not held back, 3 wait for throttles, 2 are paused', \
'980 not held back, 20 are dead letters', 'also paused and throttled ones')
    """
    if paused is None or throttled is None:
        return "also paused and throttled ones"
    free = max(0, ready - paused - throttled - dead)
    held = ((throttled, "wait for throttles"), (paused, "are paused"), (dead, "are dead letters"))
    return ", ".join([f"{free:,} not held back", *[f"{items:,} {what}" for items, what in held if items]])


# --------------------------------------------------------------------------------------------- the verdict


def verdict_link(view: View, one: Trouble) -> Link:
    """Return the link to the page on which an operator looks into a reason of the verdict."""
    if not one.topic:
        if one.code in _OF_TOPICS:
            return Link("topics", view.url("/topics", ns=one.ns, order="oldest"))
        if one.code == "handlers_hang":
            return Link(f"consumers of namespace {view.ns}", view.url("/consumers"))
        return Link("hosts", view.url("/hosts"))
    if one.code == "dead_letters":
        return Link(f"dead letters of {one.topic}", view.url("/dead", ns=one.ns, topic=one.topic))
    if one.code == "not_consumed":
        return Link(f"consumers of {one.topic}", view.url("/consumers", ns=one.ns, topic=one.topic))
    url = view.url(path_of("/topics", "topic", one.topic), ns=one.ns)
    return Link("What fails", f"{url}#failing") if one.code == "attempts_fail" else Link(f"topic {one.topic}", url)


_OF_TOPICS = (
    "attempts_fail",
    "dead_letters",
    "item_old",
    "not_consumed",
    "quota_full",
    "quota_nearly_full",
    "topic_paused",
)
