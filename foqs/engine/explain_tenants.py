"""The tenants of a topic that wait, and the authors of their pauses."""

from __future__ import annotations

from collections.abc import Generator
from shlex import quote
from typing import Any

from foqs.checks import counted
from foqs.engine.explain_limits import Ledgers, dry_gate, span
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import HELD
from foqs.fairness.topics import Topic
from foqs.fairness.turns import Turns
from foqs.idl import idl
from foqs.item import Item
from foqs.limits.lease_slots import ShardSlots
from foqs.policies.entries import THROTTLE
from foqs.prefetch.lane import Lane
from foqs.settings_log import SettingsStamp

_FLOWS = 25
"""Flows of tenants that are looked at in one slice of the event loop. Each asks for its throttles' tokens and slots."""
_CHEAP = 50
"""Flows whose items are counted in the time of one of these questions."""
_GROUPS = 10
"""Groups of tenants that wait for one limit."""
_NAMED = 5
"""Tenants that are named of each group."""
_STAMPS = 20
"""Paused tenants whose author is looked up."""


def waiting(
    state: State, topic: Topic[Lane[Item]], ledgers: Ledgers, now_ms: int
) -> Generator[None, None, tuple[list[Any], int | None]]:
    """Return the tenants with ready items of which none may be delivered, by what they wait for, and the number of all
    tenants with ready items; None where tenants take no turns."""
    if topic.turns is None:
        return [], None
    groups: dict[tuple[int, str], list[str]] = {}
    ready = looked = 0
    for tenant in list(topic.turns.tenants.values()):
        flows = [flow for flow in tenant.flows.values() if flow.ready]
        ready += bool(flows)
        looked += 1 + len(tenant.flows) // _CHEAP
        first = None
        for flow in flows if tenant.away != HELD else ():
            gate = dry_gate(state, flow, ledgers)
            first = first or gate
            looked += 1
            if looked >= _FLOWS:
                looked = 0
                yield
            if gate is None:
                break
        else:
            if flows and tenant.away == HELD:
                groups.setdefault((idl.Reason.PAUSED, ""), []).append(tenant.name)
            elif first is not None:
                code = idl.Reason.CONCURRENCY if isinstance(first, ShardSlots) else idl.Reason.THROTTLED
                limit = first.throttle.setting.removeprefix(THROTTLE)
                groups.setdefault((code, limit), []).append(tenant.name)
        if looked >= _FLOWS:
            looked = 0
            yield
    paused = groups.pop((idl.Reason.PAUSED, ""), [])
    if still := [name for name in paused if state.policies.holds(topic.key, name)]:
        groups[idl.Reason.PAUSED, ""] = still
    ranked = sorted(groups.items(), key=lambda one: (-len(one[1]), one[0]))[:_GROUPS]
    return [_group(state, topic.key, code, limit, names, ready, now_ms) for (code, limit), names in ranked], ready


def _group(state: State, key: TopicKey, code: int, limit: str, names: list[str], ready: int, now_ms: int) -> Any:
    """Return an ExplainTenants of a group. `limit`: a throttle, "" of paused tenants."""
    count, first = len(names), names[:_NAMED]
    listed = ", ".join(f"{name!r}" if name else "items without a key" for name in first)
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    who = f"{count:,} of {counted(ready, 'tenant')} with ready items"
    if code == idl.Reason.PAUSED:
        limit = state.policies.namespace(key[0]).layers(key[1])["paused_tenants"]
        said, _ = _paused_by(state, key, names, now_ms)
        verb = f"{'is' if count == 1 else 'are'} paused by the settings entry {limit}{said}"
    else:
        what = "a free slot" if code == idl.Reason.CONCURRENCY else "a token"
        verb = f"{'waits' if count == 1 else 'wait'} for {what} of throttle {limit!r}"
    return idl.ExplainTenants(code, limit, count, first, f"{who} {verb}: {listed}{more}.")


def held(state: State, key: TopicKey, turns: Turns[Lane[Item]], now_ms: int) -> list[Any]:
    """Explain a topic of which no item may be delivered, as far as its paused tenants are the reason."""
    paused = [turns.tenants[name] for name in sorted(turns.held) if name in turns.tenants]
    ready = {tenant.name: sum(flow.ready for flow in tenant.flows.values()) for tenant in paused}
    names = [name for name, items in ready.items() if items]
    count = len(names)
    if not count:
        return []
    said, stamp = _paused_by(state, key, names, now_ms)
    entry = state.policies.namespace(key[0]).layers(key[1])["paused_tenants"]
    who = f"{counted(count, 'tenant')} with ready items {'is' if count == 1 else 'are'}"
    rest = "the items of the other ones wait for throttles" if turns.ready > sum(ready.values()) else ""
    why = f"{who} paused by the settings entry {entry}{said}, and {rest or 'no other one has any'}"
    why = f"{why}; see {command('topic tenants', key)}."
    by, since_ms = stamp.by or None, stamp.changed_at_ms or None
    return [idl.ExplainReason(idl.Reason.PAUSED, why, key=entry, count=count, by=by, since_ms=since_ms)]


def _paused_by(state: State, key: TopicKey, names: list[str], now_ms: int) -> tuple[str, SettingsStamp]:
    """Return the author and the time of the latest pause of these tenants, in words and as a stamp. (Only some of them
    are looked up: each look-up reads the log of the settings.)"""
    stamps = [by_settings(state, key, "paused_tenants", now_ms, name)[1:] for name in names[:_STAMPS]]
    said, last = max(stamps, key=lambda one: one[1].changed_at_ms)
    authors = len({stamp.by for _, stamp in stamps if stamp.by})
    if len(names) > 1 and last.by:
        said = f", the last one by {last.by} {span(now_ms - last.changed_at_ms)} ago"
        said = f"{said} ({authors} authors)" if authors > 1 else said
    elif said.startswith(", paused by "):  # the sentence has the verb
        said = f", set by {said.removeprefix(', paused by ')}"
    return said, last


def by_settings(
    state: State, key: TopicKey, field: str, now_ms: int, tenant: str | None = None
) -> tuple[str, str, SettingsStamp]:
    """Return the settings entry that gives the topic this field, and the author and the time of the field: in words,
    and as a stamp."""
    ns, topic = key
    settings, entry = state.policies.settings[ns], state.policies.namespace(ns).layers(topic)[field]
    stamp, exact = settings.set_by(entry, field, tenant)
    what = field.removesuffix("_tenants") if exact else "last changed"
    said = f", {what} by {stamp.by} {span(now_ms - stamp.changed_at_ms)} ago" if stamp.by else ""
    return entry, said, stamp


def command(verb: str, key: TopicKey) -> str:
    """Return a command about a topic, quoted for a shell."""
    return f"foqs {verb} {quote(key[1])} --ns {quote(key[0])}"
