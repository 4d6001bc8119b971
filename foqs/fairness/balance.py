"""How a topic's tenants share the deliveries of several hosts. Pure.

Each host gives its tenants turns by their weights. A tenant whose items are on one host of three would get a third of
its due. So hosts report to each other how much they delivered of each tenant, and each host multiplies the weights of
its tenants by factors. A factor rises while its tenant receives less than the other tenants of the host, by weight and
on all hosts together, and falls while it receives more. Factors rest when the tenants of a host receive the same, or
when a tenant that receives more gets nothing from this host: weighted max-min. Without reports factors return to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from typing import NamedTuple

BEAT_MS = 500
"""How often a host reports, and changes its factors."""
SILENT_MS = 2_000
"""After this time without a message, the reports of a host count no more."""
_FORGOTTEN_MS = 60_000
MOST_TENANTS = 256
"""Tenants of a topic that are reported, and whose factors may change."""

_EXPONENT = 0.7
_SMOOTHING = 0.5
"""The part of the newest measurement in the service that is compared."""
_DOUBT_ITEMS = 1.0
"""Differences of less than about an item in a beat move a factor little: at low rates they are chance."""
_WIDTH = log(4_096)
"""The largest and the smallest factor on a host differ by at most this."""
_HELD_BEATS = 2
"""The number of beats after a change of weights whose service follows the old weights in part. It moves no factor."""
_HURRY, _HURRIED_BEATS, _NEWEST_BEATS = 1.6, 5, 2
"""How much faster factors move after that, in how many beats, and in how many of these by the newest figures alone."""
_NARROW = log(8)
"""By how much factors differ at most when weights change: a factor that is far from the rest would take long to
return."""
_REST_BEATS = 6
"""The least time from one such change to the next: weights that change all the time must not hold all factors."""
_FADING = 0.8
_FADED = 0.01
_MOST_KEPT = 4 * MOST_TENANTS


class Share(NamedTuple):
    """A tenant on this host. `served`: its deliveries in any unit, counted up from any time. `waits`: it has items that
    would be delivered if it had its turn."""

    name: str
    weight: float
    served: int
    waits: bool


class _Pace:
    """Service per millisecond between the last two counts."""

    __slots__ = ("at_ms", "changed_ms", "per_ms", "served")

    def __init__(self, served: int, now_ms: int) -> None:
        self.served = served
        self.at_ms = self.changed_ms = now_ms
        self.per_ms = 0.0

    def count(self, served: int, now_ms: int) -> None:
        if now_ms <= self.at_ms:
            return  # the next count has it, too
        if served >= self.served:  # else that host has restarted
            self.per_ms = (served - self.served) / (now_ms - self.at_ms)
        if served != self.served:
            self.changed_ms = now_ms
        self.served = served
        self.at_ms = now_ms


class _Host:
    """The reports of another host: the number of tenants in the last one, and the times of the last two."""

    __slots__ = ("before_ms", "heard_ms", "paces", "tenants")

    def __init__(self) -> None:
        self.before_ms: int | None = None
        self.heard_ms: int | None = None
        self.tenants = 0
        self.paces: dict[str, _Pace] = {}

    def silent(self, limit_ms: int, now_ms: int) -> bool:
        return self.heard_ms is None or now_ms - self.heard_ms > limit_ms

    def counts(self, now_ms: int) -> bool:
        """Return True if two recent reports say how much the host delivers."""
        return self.before_ms is not None and not self.silent(SILENT_MS, now_ms)


class Balance:
    """The balance of one topic on one host. Times are of a clock that never goes back. `factors`: the weights of
    tenants here are multiplied by these; a tenant without a factor has 1."""

    def __init__(self) -> None:
        self.factors: dict[str, float] = {}
        self._logs: dict[str, float] = {}
        self._hosts: dict[str, _Host] = {}
        self._own: dict[str, _Pace] = {}
        self._smooth: dict[str, float] = {}
        self._waited: set[str] = set()  # the tenants that waited at the last step
        self._stepped_ms: int | None = None
        self._weights: dict[str, float] = {}
        self._unit: str | None = None
        self._beats = _HELD_BEATS + _HURRIED_BEATS  # since the weights changed

    @property
    def quiet(self) -> bool:
        """Return True if no other host reports, and no factor is left."""
        return not self._hosts and not self._logs

    def contested(self, now_ms: int) -> bool:
        """Return True if another host has two or more tenants: it needs the reports of this host, even on one
        tenant."""
        return any(host.tenants > 1 and not host.silent(SILENT_MS, now_ms) for host in self._hosts.values())

    def heard(self, host: str, shares: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Take a report of another host: (tenant, service since that host's start). A report that is lost costs
        nothing: the next one has its service."""
        known = self._hosts.get(host)
        if known is None:
            known = self._hosts[host] = _Host()
        known.before_ms, known.heard_ms, known.tenants = known.heard_ms, now_ms, len(shares)
        paces = known.paces
        for name, served in shares:
            pace = paces.pop(name, None)
            if pace is None:
                pace = _Pace(served, now_ms)
            else:
                pace.count(served, now_ms)
            paces[name] = pace
        while len(paces) > _MOST_KEPT:
            del paces[next(iter(paces))]

    def report(self, shares: Sequence[Share], now_ms: int) -> list[Share]:
        """Return the tenants that wait or were served lately, to report on after a step with `shares`."""
        return [one for one in shares if one.waits or now_ms - self._own[one.name].changed_ms <= SILENT_MS]

    def step(self, shares: Sequence[Share], item: float, now_ms: int, unit: str = "") -> None:
        """Change the factors. `shares`: the tenants here, at most `MOST_TENANTS`; `item`: the usual service of one
        delivery, more than 0, in the unit of `Share.served`, which is named `unit`."""
        elapsed_ms = 0 if self._stepped_ms is None else now_ms - self._stepped_ms
        self._stepped_ms = now_ms
        self._forget(shares, now_ms)
        self._beats += 1
        self._note_weights(shares, unit)
        if self._beats <= _HELD_BEATS + _NEWEST_BEATS:
            self._smooth.clear()
        hosts = [host for host in self._hosts.values() if host.counts(now_ms)]
        paces = {one.name: self._pace(one, hosts, now_ms) for one in shares}
        # What a tenant received before it waited says nothing: it would get all that it seemed to lack.
        waited, self._waited = self._waited, {one.name for one in shares if one.waits}
        if self._beats < _HELD_BEATS:
            return
        hurries = self._beats < _HELD_BEATS + _HURRIED_BEATS
        both = self._waited & waited if hosts else ()
        compared = [one for one in shares if one.name in both and _comparable(one.name, hosts)]
        if len(compared) < 2 or not elapsed_ms:
            compared = []
        logs = self._logs
        self._fade(logs.keys() - {one.name for one in compared})
        if compared:
            exponent = _EXPONENT * (_HURRY if hurries else 1.0)
            mean = sum([paces[one.name] / one.weight for one in compared]) / len(compared)
            for one in compared:
                due, got = mean * one.weight * elapsed_ms, paces[one.name] * elapsed_ms
                change = exponent * log((due + _DOUBT_ITEMS * item) / (got + _DOUBT_ITEMS * item))
                logs[one.name] = logs.get(one.name, 0.0) + change
            # Held from above, so that tenants that receive too little still compete with each other.
            lowest = max([logs[one.name] for one in compared]) - _WIDTH
            held = [max(logs[one.name], lowest) for one in compared]
            middle = sum(held) / len(held)
            logs.update((one.name, value - middle) for one, value in zip(compared, held, strict=True))
        self.factors = {name: exp(value) for name, value in logs.items()}

    # ------------------------------------------------------------------------------------- inside

    def _note_weights(self, shares: Sequence[Share], unit: str) -> None:
        """After a change of weights, or of the unit, the service before it says nothing. The turns follow it at once. A
        factor that followed it, too, would be wrong for seconds."""
        before, self._weights = self._weights, {one.name: one.weight for one in shares}
        others = [name for name, weight in self._weights.items() if before.get(name, weight) != weight]
        changed = bool(others) or self._unit not in (None, unit)
        self._unit = unit
        if not changed or self._beats < _REST_BEATS:
            return
        self._beats = 0
        if self._logs:
            lowest = max(self._logs.values()) - _NARROW
            self._logs = {name: max(value, lowest) for name, value in self._logs.items()}
            self.factors = {name: exp(value) for name, value in self._logs.items()}

    def _pace(self, one: Share, hosts: Sequence[_Host], now_ms: int) -> float:
        """Return the service of a tenant per millisecond, on all hosts."""
        own = self._own.get(one.name)
        if own is None:
            own = self._own[one.name] = _Pace(one.served, now_ms)
        else:
            own.count(one.served, now_ms)
        newest = own.per_ms
        for host in hosts:
            pace = host.paces.get(one.name)
            if pace is not None and now_ms - pace.at_ms <= SILENT_MS:
                newest += pace.per_ms
        before = self._smooth.get(one.name, newest) if one.name in self._waited else newest
        smooth = self._smooth[one.name] = before + _SMOOTHING * (newest - before)
        return smooth

    def _fade(self, names: Iterable[str]) -> None:
        for name in names:
            faded = self._logs[name] * _FADING
            if abs(faded) < _FADED:
                del self._logs[name]
            else:
                self._logs[name] = faded

    def _forget(self, shares: Sequence[Share], now_ms: int) -> None:
        """Forget silent hosts, and tenants that are here no more."""
        for name in [name for name, host in self._hosts.items() if host.silent(_FORGOTTEN_MS, now_ms)]:
            del self._hosts[name]
        here = {one.name for one in shares}
        for known in (self._own, self._smooth, self._logs):
            for name in known.keys() - here:
                del known[name]


def _comparable(name: str, hosts: Sequence[_Host]) -> bool:
    """Return True if every host that has the tenant reports on it."""
    return all(host.tenants < MOST_TENANTS or name in host.paces for host in hosts)
