"""Answers about the settings of a namespace, and typed changes of the entries that foqs reads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict

from foqs.settings_log import SettingsStamp, SettingsVersion, Value, ValueDigest

TOPIC, THROTTLE = "topic.", "throttle."
Changes = tuple[Mapping[str, str], Collection[str]]
"""(entries to put, keys to remove)."""


class Settings(NamedTuple):
    """`version` 0: they were never written. Each change adds 1. `stamps`: by key, the time and the
    author of an entry's value; entries that a host of an older version of foqs wrote have none."""

    version: int
    entries: dict[str, str]
    stamps: Mapping[str, SettingsStamp] = MappingProxyType({})


class SettingsChange(NamedTuple):
    """The version that a change made. `applied`: host:port of the hosts that act on it; `missing`: of the living hosts
    that did not say so within 2 s. `warnings`: changed entries that have no effect, or look like misspelt ones, with
    the reason."""

    version: int
    applied: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class SettingsLog(NamedTuple):
    """`version` is the present one. `versions` are the last ones, the newest first, with what they changed; one that is
    missing between them was made by a host of an older version of foqs."""

    version: int
    versions: tuple[SettingsVersion, ...]

    @classmethod
    def of(cls, response: Any) -> SettingsLog:
        return cls(response.version, tuple(map(_version, response.versions or ())))


def stamp_of(found: Any) -> SettingsStamp:
    return SettingsStamp(found.changed_at_ms or 0, found.by or "")


def _version(found: Any) -> SettingsVersion:
    changes = {one.key: (_value(one.before), _value(one.after)) for one in found.changes or ()}
    return SettingsVersion(found.version, stamp_of(found.stamp), changes, found.left_out or 0)


def _value(found: Any) -> Value:
    if found is None or found.size_bytes is None:
        return None if found is None else found.text or ""
    return ValueDigest(found.size_bytes, found.digest or "")


class PolicyFields(TypedDict, total=False):
    """Fields of a topic's policy, as docs/reference/settings.md lists them."""

    priority: int
    lease_ms: int | None
    ttl_ms: int | None
    delay_ms: int
    delivery: Literal["at_least_once", "at_most_once"]
    paused: bool
    paused_tenants: list[str]
    closed: bool
    max_stored: int | None
    fair: Mapping[str, Any]
    throttles: list[str]
    per_worker: int | None
    retry: Mapping[str, Any] | None
    max_attempts: int
    max_total_ms: int
    exact_attempts: bool
    stuck_after_ms: int
    dead: Mapping[str, Any] | None
    hooks: Mapping[str, Any] | None
    keep: Mapping[str, Any] | None
    enforce: list[str]
    order: Mapping[str, Any]
    on_end_topic: str | None


class ThrottleFields(TypedDict, total=False):
    """Fields of a throttle, as docs/reference/settings.md lists them."""

    per_second: float | None
    burst: int | None
    concurrency: int | None
    timeout_ms: int | None
    shadow: bool


def with_fields(
    entries: Mapping[str, str], key: str, fields: Mapping[str, Any], without: Iterable[str] = ()
) -> Changes:
    """Return the changes that give the JSON object at `key` these fields, and take out the fields in `without`. An
    object without a field is removed."""
    own: dict[str, Any] = json.loads(entries.get(key, "{}")) | dict(fields)
    own = {field: value for field, value in own.items() if field not in set(without)}
    if own:
        return {key: json.dumps(own, ensure_ascii=False)}, ()
    return {}, [key] if key in entries else ()
