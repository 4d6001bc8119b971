"""The push targets of a namespace, and one of them: its endpoint, and the state of the items that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from foqs.checks import printable
from foqs.client import FoqsError, Settings, SettingsStamp
from foqs.console.dead_letters import Selection, groups_of
from foqs.console.entries import indented
from foqs.console.topic_now import topic_now
from foqs.console.view import Page, View, path_of
from foqs.errors import Invalid, NotFound
from foqs.policies.entries import PUSH
from foqs.policies.push import NAMED_SECRET, PushEntry, parse_push
from foqs.settings_log import UNKNOWN

PAGE_TARGETS = 200
MOST_GROUPS = 20
_MOST_SHARING = 20


class Target(NamedTuple):
    """`entry` is None, with the `error`, for a setting of a newer version of foqs."""

    name: str
    entry: PushEntry | None
    error: str
    stamp: SettingsStamp


async def load(view: View) -> Mapping[str, Any]:
    prefix = view.request.query_params.get("prefix", "")
    found = await view.client.settings(PUSH + prefix)
    targets = [_target(found, key) for key in sorted(found.entries)[:PAGE_TARGETS]]
    return {"targets": targets, "all_targets": len(found.entries), "prefix": prefix, "push_url": _url(view)}


async def load_one(view: View) -> Mapping[str, Any]:
    name = view.named("name")
    found = await view.client.settings(PUSH)
    if PUSH + name not in found.entries:
        raise NotFound(f"namespace {printable(view.ns)} has no push target {printable(name)}: the page Push lists them")
    target = _target(found, PUSH + name)
    values = {"target": target, "key": PUSH + name, "push_url": _url(view), "version": found.version}
    entry = target.entry
    if entry is None:
        return values | {"value": indented(found.entries[PUSH + name])}
    others = [key for key in found.entries if key != PUSH + name and _topic_of(found, key) == entry.topic]
    now = await topic_now(view, entry.topic, 1)
    return {
        **values, **now, **await _dead(view, now["stats"].policy.get("dead")),
        "secrets_of_headers": _secrets_of_headers(entry),
        "sharing": sorted(key.removeprefix(PUSH) for key in others)[:_MOST_SHARING],
        "more_sharing": len(others[_MOST_SHARING:]),
    }  # fmt: skip


async def _dead(view: View, entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the groups of the dead-letter topic, the largest first; None: the user has no right to them."""
    values: dict[str, Any] = {"dead_topic": "", "groups": [], "dead_error": "", "missing": ()}
    if entry is None:
        return values
    answer = await view.allowed(groups_of(view, Selection(entry["topic"])))
    if answer is None:
        return values | {"dead_topic": entry["topic"], "groups": None}
    found, as_of_ms = answer
    if isinstance(found, FoqsError):
        return values | {"dead_topic": entry["topic"], "dead_error": found.message}
    groups = sorted(found.groups, key=lambda one: -one.count)
    return values | {
        "dead_topic": entry["topic"], "dead": sum(one.count for one in groups), "groups": groups[:MOST_GROUPS],
        "left_out": len(groups[MOST_GROUPS:]), "missing": found.missing,
        "as_of_ms": 0 if as_of_ms == view.now_ms else as_of_ms,
    }  # fmt: skip


def _target(found: Settings, key: str) -> Target:
    name, stamp = key.removeprefix(PUSH), found.stamps.get(key, UNKNOWN)
    try:
        return Target(name, parse_push(found.entries[key]), "", stamp)
    except Invalid as error:
        return Target(name, None, error.message, stamp)


def _topic_of(found: Settings, key: str) -> str | None:
    entry = _target(found, key).entry
    return None if entry is None else entry.topic


def _secrets_of_headers(entry: PushEntry) -> list[str]:
    """Return the names of the secrets that the values of headers name. The values are not shown: one that names no
    secret may be one."""
    return sorted({found[1] for value in entry.headers.values() for found in NAMED_SECRET.finditer(value)})


def _url(view: View) -> Any:
    return lambda name: view.url(path_of("/push", "name", name))


PAGE = Page("/push", "Push", "push_targets.html", load, key="p")
ONE = Page("/push/{name:path}", "Push target", "push_target.html", load_one, home="/push")
