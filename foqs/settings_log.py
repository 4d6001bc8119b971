"""The log of a namespace's settings: the entries that each version changed, its time and its author. Pure.

A record has the old and the new value of each changed key, so an earlier version is the present one with the later
records undone. The log is bounded in versions and in bytes. A host of a version of foqs without a log makes versions
without a record: no version before one of these can be restored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple

from foqs.checks import is_text
from foqs.errors import Invalid, NotFound

MOST_VERSIONS = 100
LOG_BYTES = 262_144
"""The log is smaller where the document leaves less of `TRANSACTION_BYTES`."""
TRANSACTION_BYTES = 998_000
"""A document and its log together: ZooKeeper takes a transaction of less than 1 MiB."""
_MOST_NAMED = 5
_HEAD = re.compile(rb'\{"version":[0-9]+,')
_LEFT_OUT_BYTES = 24
"""What `left_out` takes in a record."""


class SettingsStamp(NamedTuple):
    """The time of a change, in Unix epoch milliseconds of the host that made it, and its author: a principal, or the
    `host:port` of a caller that is none. 0 and "": unknown."""

    changed_at_ms: int = 0
    by: str = ""


UNKNOWN = SettingsStamp()


class ValueDigest(NamedTuple):
    """Takes the place of a value that is too large for the log. `digest`: 32 hexadecimal digits, BLAKE2b."""

    size_bytes: int
    digest: str


Value = str | ValueDigest | None
"""The value of an entry. None: there was no such entry, or there is none from then on."""
Changed = Mapping[str, tuple[Value, Value]]
"""By key: the old and the new value."""


class SettingsVersion(NamedTuple):
    """A version. `left_out`: further changed keys, for which the log had no room."""

    version: int
    stamp: SettingsStamp
    changes: Changed
    left_out: int = 0

    def encoded(self) -> bytes:
        head = {"version": self.version, "at": self.stamp.changed_at_ms, "by": self.stamp.by}
        changes = {key: [_encoded(old), _encoded(new)] for key, (old, new) in self.changes.items()}
        return _json(head | {"changes": changes} | ({"left_out": self.left_out} if self.left_out else {}))

    def within(self, room_bytes: int) -> SettingsVersion:
        """Return the record in at most `room_bytes`. First the largest new values become digests, as an earlier version
        is made of the old ones: these leave half of the room to other records. Then old values, then keys are cut."""
        made, size = self._digested(1, len(self.encoded()), room_bytes // 2)
        made, size = made._digested(0, size, room_bytes)
        if size <= room_bytes:
            return made
        changes = dict(made.changes)
        for key in sorted(changes, reverse=True):
            if size + _LEFT_OUT_BYTES <= room_bytes:
                break
            old, new = changes.pop(key)
            size -= len(_json({key: [_encoded(old), _encoded(new)]})) - len("{}")
        return made._replace(changes=changes, left_out=self.left_out + len(self.changes) - len(changes))

    def _digested(self, side: int, size: int, room_bytes: int) -> tuple[SettingsVersion, int]:
        """Return the record and its size, of `size` bytes so far, with digests of old (0) or new (1) values."""
        changes = dict(self.changes)
        texts = {key: text for key, both in changes.items() if isinstance(text := both[side], str)}
        for key in sorted(texts, key=lambda one: -len(texts[one])):
            digest = digest_of(texts[key])
            gained = len(_json(texts[key])) - len(_json(_encoded(digest)))
            if size <= room_bytes or gained <= 0:
                break
            old, new = changes[key]
            changes[key] = (digest, new) if side == 0 else (old, digest)
            size -= gained
        return self._replace(changes=changes), size


def digest_of(value: str) -> ValueDigest:
    data = value.encode()
    return ValueDigest(len(data), blake2b(data, digest_size=16).hexdigest())


def same(one: Value, other: Value) -> bool:
    """Return True if two values are equal, as far as the log has them."""
    if isinstance(one, str) and isinstance(other, ValueDigest):
        return digest_of(one) == other
    return same(other, one) if isinstance(one, ValueDigest) and isinstance(other, str) else one == other


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[Value, Value]]:
    """Return what differs between the entries of two versions."""
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: (before.get(key), after.get(key)) for key in sorted(keys)}


@dataclass(frozen=True)
class Log:
    """`lines`: a record each, as JSON, the oldest first. Immutable."""

    lines: tuple[bytes, ...] = ()

    @cached_property
    def records(self) -> Sequence[SettingsVersion]:
        """The records, in order, without unreadable ones. They are parsed at their first use: a host has the logs of
        all namespaces, and seldom looks into one."""
        return tuple(record for line in self.lines if (record := _record(line)) is not None)

    @property
    def version(self) -> int:
        """The version of the last record, 0 without one."""
        return _version(self.lines[-1]) if self.lines else 0

    def encoded(self) -> bytes:
        """Return the log as it is stored by itself: lines of JSON."""
        return b"\n".join(self.lines)

    def added(self, record: SettingsVersion, room_bytes: int) -> Log:
        """Return the log with one more record, in at most `room_bytes`: the oldest records make room."""
        line = record.within(room_bytes).encoded()
        return _bounded([*(one for one in self.lines if _version(one) < record.version), line], room_bytes)

    def merged(self, other: Log, version: int, room_bytes: int) -> Log:
        """Return the records of both logs up to a version of both histories, in at most `room_bytes`."""
        lines = {_version(line): line for line in (*other.lines, *self.lines) if _version(line) <= version}
        return _bounded([lines[number] for number in sorted(lines)], room_bytes)


NO_LOG = Log()


def decode(data: bytes) -> Log:
    """Read a log that `Log.encoded` made. Raises Invalid."""
    lines = tuple(data.split(b"\n")) if data else ()
    if not all(map(_HEAD.match, lines)):
        raise Invalid("the log of settings is not readable")
    versions = [_version(line) for line in lines]
    if versions != sorted(set(versions)):
        raise Invalid("the log of settings is not in the order of its versions")
    return Log(lines)


def _bounded(lines: list[bytes], room_bytes: int) -> Log:
    size, kept = 0, list[bytes]()
    for line in reversed(lines[-MOST_VERSIONS:]):
        size += len(line) + 1
        if size > room_bytes + 1:
            break
        kept.append(line)
    return Log(tuple(reversed(kept)))


def gaps(present: int, versions: Iterable[int]) -> list[int]:
    """Return the versions that are missing in a log, whose `versions` are in order, the newest first; `present`: the
    settings' version.

    >>> gaps(9, [8, 5])
    [9, 7, 6]
    """
    missing, expected = list[int](), present
    for version in versions:
        missing += range(expected, version, -1)
        expected = version - 1
    return missing


# ------------------------------------------------------------------------------------------ differences


class Difference(NamedTuple):
    """What differs between two versions. `unknown`: versions between them of which the log has nothing, or not
    everything; with one of these, `changes` may lack keys."""

    changes: dict[str, tuple[Value, Value]]
    unknown: list[int]


def difference(records: Iterable[SettingsVersion], early: int, late: int) -> Difference:
    """Return what differs from version `early` to `late`. `records`: of the log, in order."""
    first: dict[str, Value] = {}
    last: dict[str, Value] = {}
    unknown = set(range(early + 1, late + 1))
    for record in records:
        if not early < record.version <= late:
            continue
        if not record.left_out and all(same(last.get(key, old), old) for key, (old, _) in record.changes.items()):
            unknown.discard(record.version)
        for key, (old, new) in record.changes.items():
            first.setdefault(key, old)
            last[key] = new
    changes = {key: (first[key], last[key]) for key in sorted(first) if not same(first[key], last[key])}
    return Difference(changes, sorted(unknown))


def undoing(
    records: Sequence[SettingsVersion], version: int, to: int, only: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Return (entries to put, keys to remove), which turn the settings of `version` into the settings of version `to`.
    `only`: for these keys alone.

    Raises Invalid for a version that is not an earlier one, and NotFound, with the reason, for one that the log does
    not suffice to restore exactly."""
    if not 0 <= to < version:
        raise Invalid(f"version {to} is none before version {version}, the present one")
    changes, unknown = difference(records, to, version)
    if unknown:
        raise NotFound(f"version {to} cannot be restored: {_why(records, unknown, version)}")
    chosen = {key: old for key, (old, _) in changes.items() if not only or key in only}
    lost = [f"{key} ({old.size_bytes:,} bytes)" for key, old in chosen.items() if isinstance(old, ValueDigest)]
    if lost:
        raise NotFound(
            f"version {to} cannot be restored exactly: the log has only a digest of the value of "
            f"{', '.join(lost[:_MOST_NAMED])}{f' and {len(lost) - _MOST_NAMED} more' if lost[_MOST_NAMED:] else ''}"
        )
    put = {key: old for key, old in chosen.items() if isinstance(old, str)}
    return put, [key for key, old in chosen.items() if old is None]


def _why(records: Sequence[SettingsVersion], unknown: list[int], version: int) -> str:
    """Return why the log says too little about the versions in `unknown`."""
    known = {record.version: record for record in records}
    last = unknown[-1]
    oldest = f"version {last} is the oldest one that can be" if last < version else "no earlier version can be"
    if last in known:
        return f"version {last} changed more than the log has room for; {oldest}"
    if records and last > records[0].version:
        return f"version {last} was made by a host of an older version of foqs, which keeps no log; {oldest}"
    return f"the log no longer has version {last}, or never had it; {oldest}"


# ------------------------------------------------------------------------------------------ stamps


def stamps_in(records: Iterable[SettingsVersion], entries: Mapping[str, str]) -> dict[str, SettingsStamp]:
    """Return the stamps of entries whose values are in the log."""
    found: dict[str, tuple[Value, SettingsStamp]] = {}
    for record in records:
        found |= {key: (new, record.stamp) for key, (_, new) in record.changes.items()}
    return {key: stamp for key, (new, stamp) in found.items() if key in entries and same(entries[key], new)}


def encode_stamps(keys: Sequence[str], stamps: Mapping[str, SettingsStamp], room_bytes: int) -> dict[str, Any]:
    """Return the stamps as JSON has them, for keys in order: `at` has each stamp once, and `of` pairs of (place in
    `at`, or -1; number of keys). In at most `room_bytes`: the oldest stamps make room."""
    at = sorted(set(stamps.values()), reverse=True)
    while True:
        places = {stamp: place for place, stamp in enumerate(at)}
        runs = groupby(places.get(stamps.get(key, UNKNOWN), -1) for key in keys)
        made = {"at": [[*stamp] for stamp in at], "of": [[place, len(list(run))] for place, run in runs]}
        if not at or len(_json(made)) <= room_bytes:
            return made if at else {}
        at = at[: len(at) // 2]


def decode_stamps(keys: Sequence[str], value: Any) -> dict[str, SettingsStamp]:
    """Read what `encode_stamps` made. Raises Invalid."""
    try:
        at = [_stamp(*one) for one in value["at"]]
        places = [place for place, count in value["of"] for _ in range(min(count, len(keys)))]
        return {key: at[place] for key, place in zip(keys, places, strict=True) if place >= 0}
    except (TypeError, ValueError, KeyError, IndexError):
        raise Invalid("the stamps of settings are not readable") from None


# ------------------------------------------------------------------------------------------ inside

_json_text = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


def _json(value: object) -> bytes:
    return _json_text(value).encode()


def _version(line: bytes) -> int:
    return int(line[line.index(b":") + 1 : line.index(b",")])


def _encoded(value: Value) -> object:
    return [value.size_bytes, value.digest] if isinstance(value, ValueDigest) else value


def _value(found: Any) -> Value:
    if isinstance(found, list):
        size_bytes, digest = found
        if type(size_bytes) is int and is_text(digest):
            return ValueDigest(size_bytes, digest)
    elif found is None or is_text(found):
        return found
    raise ValueError("not a value")


def _stamp(at_ms: Any, by: Any) -> SettingsStamp:
    if type(at_ms) is not int or not is_text(by):
        raise ValueError("not a stamp")
    return SettingsStamp(at_ms, by)


def _record(line: bytes) -> SettingsVersion | None:
    try:
        found = json.loads(line)
        changes = {key: (_value(old), _value(new)) for key, (old, new) in found["changes"].items()}
        if all(map(is_text, changes)):
            stamp = _stamp(found["at"], found["by"])
            return SettingsVersion(_version(line), stamp, changes, int(found.get("left_out", 0)))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        pass
    return None
