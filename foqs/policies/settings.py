"""The settings of a namespace: a flat map of text keys to text values under one version, its store, and its copies.

Copies are in ZooKeeper, in a host's memory, and in the database of each shard. The history of a document says which of
two copies is newer, or that they were made apart. A host acts on no copy that another change has replaced, and on none
of another history: the operator decides which one counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from foqs.checks import has_control, is_text
from foqs.errors import Conflict, FoqsError, Invalid
from foqs.hooks.protocol import SCRIPT_BYTES
from foqs.policies.dead_topics import DeadTopics, says_something
from foqs.policies.entries import (
    PUSH,
    SCHEDULE,
    SCRIPT,
    THROTTLE,
    TOPIC,
    WEIGHT,
    misspelt,
    parse_throttle,
    parse_weight,
    pattern_error,
    schedule_name_error,
    script_name_error,
)
from foqs.policies.push import parse_push, push_name_error
from foqs.policies.schedules import check_schedule
from foqs.policies.topic_policy import check_script, event_circles, parse
from foqs.settings_log import (
    LOG_BYTES,
    NO_LOG,
    TRANSACTION_BYTES,
    UNKNOWN,
    Log,
    SettingsStamp,
    SettingsVersion,
    Value,
    ValueDigest,
    changes_of,
    decode_stamps,
    encode_stamps,
    same,
    stamps_in,
)
from foqs.settings_log import decode as decode_log

PAST = 32
"""Versions whose marks a copy has. A copy knows an older version by the mark of the first version alone."""


class History(NamedTuple):
    """`past`: the marks of this version and of those before it, the newest first. `born`: the mark of version 1.

    A mark is 16 hexadecimal digits that no other change has, on any host. A document that was written by hand has none.
    """

    version: int = 0
    born: str = ""
    past: tuple[str, ...] = ()

    def next(self, seed: str) -> History:
        """Return the history of the next version. `seed` differs for each change."""
        mark = blake2b(f"{self.past[:1]}\0{self.version}\0{seed}".encode(errors="replace"), digest_size=8).hexdigest()
        return History(self.version + 1, self.born or mark, (mark, *self.past[: PAST - 1]))

    def leads_to(self, later: History) -> bool:
        """Return True if `later` is this version, or was made from it by changes."""
        steps = later.version - self.version
        if steps < 0 or self.version == 0:
            return steps >= 0
        if steps < len(later.past):
            return later.past[steps : steps + 1] == self.past[:1]
        return self.born == later.born


MOST_BYTES = 900_000
VALUE_BYTES = 4_096
KEY_BYTES = 512
_KEY_CHARACTERS = 80
_ENTRIES, _HEAD_BYTES = b',"entries":', 2_000


@dataclass(frozen=True, slots=True)
class Settings:
    """One version of the settings of a namespace. `version` 0: they were never written. Each change adds 1. `born`,
    `past`: see `History`. `stamps`: by key, the time and the author of an entry's value, as far as they are known.
    `log`: what the last versions changed. `logged`: the version of its last record, also where the log is elsewhere."""

    ns: str
    version: int = 0
    entries: Mapping[str, str] = field(default_factory=dict)
    born: str = field(default="", compare=False, repr=False)
    past: tuple[str, ...] = field(default=(), compare=False, repr=False)
    stamps: Mapping[str, SettingsStamp] = field(default_factory=dict, compare=False, repr=False)
    log: Log = field(default=NO_LOG, compare=False, repr=False)
    logged: int = field(default=0, compare=False, repr=False)

    @property
    def history(self) -> History:
        return History(self.version, self.born, self.past)

    def changed(
        self,
        entries: Mapping[str, str],
        remove: Collection[str],
        expected_version: int | None = None,
        *,
        nonce: str = "",
        stamp: SettingsStamp = UNKNOWN,
    ) -> Settings:
        """Return the next version, with `entries` and without the keys in `remove`. `nonce` differs for each change, on
        all hosts; `stamp` has its time and its author. An entry that gets the value that it has keeps its stamp.
        Raises Conflict if this is not `expected_version`, and Invalid with every error, one a line."""
        if expected_version is not None and expected_version != self.version:
            raise Conflict(
                f"the settings of {self.ns} have version {self.version}, not {expected_version}: read them again"
            )
        both = sorted(entries.keys() & set(remove))
        errors = [f"{_shown(key)}: it is both in entries and in remove" for key in both]
        missing = sorted(set(remove) - self.entries.keys())
        errors += [f"{_shown(key)}: there is no such key to remove" for key in missing]
        kept = {key: value for key, value in self.entries.items() if key not in set(remove)}
        seed = nonce or repr((self.ns, sorted(entries.items()), sorted(remove)))
        made = Settings(self.ns, entries=kept | dict(entries), **self.history.next(seed)._asdict())
        errors += check(made.entries)
        touched = {key for key in (*entries, *remove) if key.startswith(TOPIC)}
        if touched and not errors:
            errors += _dead_topics(made.entries).circles(touched) + _event_circles(made.entries)
        size_bytes = 0 if errors else len(made.document())  # it has no stamps yet
        if size_bytes > MOST_BYTES:
            errors.append(f"the settings take {size_bytes} bytes, more than {MOST_BYTES}: a key with * serves many")
        if errors:
            raise Invalid("\n".join(errors))
        return made._stamped(self, stamp)

    def _stamped(self, before: Settings, stamp: SettingsStamp) -> Settings:
        """Return this version, which follows `before`, with its stamps and its record in the log."""
        changes = changes_of(before.entries, self.entries)
        stamps = {key: one for key, one in before.stamps.items() if key in self.entries and key not in changes}
        if stamp != UNKNOWN:
            stamps |= {key: stamp for key in changes if key in self.entries}
        made = replace(self, stamps=stamps)
        log = before.log.added(SettingsVersion(self.version, stamp, changes), made._room_bytes())
        return replace(made, log=log, logged=log.version)

    def _room_bytes(self) -> int:
        """Return the bytes that the log may have."""
        return min(LOG_BYTES, TRANSACTION_BYTES - len(self.document()))

    def with_log(self, log: Log) -> Settings:
        """Return the same version with this log. It also has the stamps of a document of a host without a log."""
        stamps = self.stamps or stamps_in(log.records, self.entries)
        return replace(self, log=log, stamps=stamps, logged=max(self.logged, log.version))

    def united(self, other: Settings) -> Settings:
        """Return these settings with the records of another copy of their history too; themselves if it has none that
        they lack."""
        if other.log.lines == self.log.lines or not other.log.lines:
            return self
        if not (self.history.leads_to(other.history) or other.history.leads_to(self.history)):
            return self  # made apart, with equal entries
        log = self.log.merged(other.log, self.version, self._room_bytes())
        return self if log.lines == self.log.lines else self.with_log(log)

    @property
    def whole(self) -> bool:
        """False while the log is older than the document says."""
        return self.log.version >= self.logged

    def set_by(self, key: str, field: str, member: str | None = None) -> tuple[SettingsStamp, bool]:
        """Return the stamp of the change that set a field, which is True or has this `member`, in the topic policy at
        `key`, and True. Where the log does not have it: the stamp of the last change of the entry, and False."""
        present: Value = self.entries[key]
        for record in reversed(self.log.records):
            if key in record.changes:
                before, after = record.changes[key]
                if not same(present, after) or not _is_on(after, field, member) or isinstance(before, ValueDigest):
                    break
                if not _is_on(before, field, member):
                    return record.stamp, True
                present = before
        return self.stamps.get(key, UNKNOWN), False

    def checked(self) -> Settings:
        """Return these settings. Raises Invalid if an entry is not valid."""
        errors = check(self.entries)
        if errors:
            raise Invalid(f"the settings of {self.ns} are not valid: {'; '.join(errors)}")
        return self

    def warnings(self, changed: Set[str] | None = None) -> list[str]:
        """Return a warning for each value without an effect. With `changed`: only warnings about one of these keys, and
        one for each of them that looks misspelt."""
        if changed is None:
            return [one.text for one in _dead_topics(self.entries).warnings()]
        found = []
        if any(key.startswith(TOPIC) for key in changed):
            found = [one.text for one in _dead_topics(self.entries).warnings() if not one.keys.isdisjoint(changed)]
        looks = (misspelt(key) for key in sorted(changed & self.entries.keys()))
        return [*found, *(text for text in looks if text is not None)]

    def faults(self) -> list[str]:
        """Return the errors of these settings together, which `check` of single entries does not find."""
        return _dead_topics(self.entries).circles(self.entries.keys()) + _event_circles(self.entries)

    def document(self) -> bytes:
        """Return the document without its log. Its history comes first, which `head_of` reads. Hosts of a version
        without a log leave out what they do not know."""
        head = {"stamp": self.version, "born": self.born, "past": self.past}
        if self.log.version:
            head["logged"] = self.log.version
        document = head | {"entries": dict(sorted(self.entries.items()))}
        made = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        room_bytes = (TRANSACTION_BYTES - len(made)) // 2
        stamps = encode_stamps(sorted(self.entries), self.stamps, room_bytes) if self.stamps else None
        if not stamps:
            return made
        return _joined(made, b"stamps", json.dumps(stamps, ensure_ascii=False, separators=(",", ":")).encode())

    def encoded(self) -> bytes:
        """Return the document with its log, as a shard keeps both."""
        made = self.document()
        if not self.log.lines:
            return made
        return _joined(made, b"log", json.dumps(self.log.encoded().decode(), ensure_ascii=False).encode())


_CHECKS: Mapping[str, Callable[[str], object]] = {
    TOPIC: parse,
    THROTTLE: parse_throttle,
    WEIGHT: parse_weight,
    SCRIPT: check_script,
    SCHEDULE: check_schedule,
    PUSH: parse_push,
}
"""The check of a value by the prefix of its key. It raises Invalid with every error."""
_NAMES: Mapping[str, Callable[[str], str | None]] = {
    SCRIPT: script_name_error,
    SCHEDULE: schedule_name_error,
    PUSH: push_name_error,
}
"""The check of the rest of the key, where that may be no `prefix*`."""
Change = Callable[[Settings], Settings]


def _is_on(value: Value, field: str, member: str | None) -> bool:
    found = getattr(parse(value), field) if isinstance(value, str) else None
    return found is True if member is None else member in (found or ())


def _joined(document: bytes, name: bytes, value: bytes) -> bytes:
    return b'%s,"%s":%s}' % (document[:-1], name, value)


def decode(ns: str, document: bytes) -> Settings:
    """Read a stored document. Raises Invalid."""
    return parse_document(ns, document).checked()


def parse_document(ns: str, document: bytes) -> Settings:
    """Read a stored document without a check of its entries, which takes most of the time. Raises Invalid."""
    try:
        value = json.loads(document)
        version, entries = value["stamp"], value["entries"]
        born, past, logged = value.get("born", ""), value.get("past", []), value.get("logged", 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Invalid(f"the settings of {ns} are not readable") from None
    texts = isinstance(entries, dict) and all(map(is_text, (*entries, *entries.values())))
    marks = isinstance(past, list) and all(map(is_text, (born, *past)))
    if type(version) is not int or version < 0 or not texts or not marks or type(logged) is not int:
        raise Invalid(f"the settings of {ns} are not readable")
    made = Settings(ns, version, entries, born, tuple(past), logged=logged)
    with suppress(Invalid):  # the entries count all the same
        made = replace(made, stamps=decode_stamps(sorted(entries), value["stamps"]) if "stamps" in value else {})
    with suppress(Invalid):
        made = made.with_log(decode_log(str(value["log"]).encode())) if "log" in value else made
    return made


class Head(NamedTuple):
    """What a document says of itself. `logged`: the version of the last record in its log."""

    history: History = History()
    logged: int = 0


def head_of(document: bytes) -> Head | None:
    """Return the head of a document that `Settings.encoded` made, without reading its entries; None for another."""
    head, found, _ = document.partition(_ENTRIES)
    if not found or len(head) > _HEAD_BYTES:
        return None
    try:
        value = json.loads(head + b"}")
        return Head(History(value["stamp"], value["born"], tuple(value["past"])), int(value.get("logged", 0)))
    except (ValueError, KeyError, TypeError):
        return None


def _dead_topics(entries: Mapping[str, str]) -> DeadTopics:
    """Return the dead-letter topics of valid entries. Most settings say nothing about them: those are not parsed."""
    topics = {key.removeprefix(TOPIC): text for key, text in entries.items() if key.startswith(TOPIC)}
    if not any(says_something(name, text) for name, text in topics.items()):
        topics = {}
    return DeadTopics({name: parse(text) for name, text in topics.items()})


def _event_circles(entries: Mapping[str, str]) -> list[str]:
    """Return an error for each circle of end events in valid entries. Only those are parsed that may have some."""
    topics = {key.removeprefix(TOPIC): text for key, text in entries.items() if key.startswith(TOPIC)}
    return event_circles({key: parse(text) for key, text in topics.items() if "on_end" in text or "\\u" in text})


def check(entries: Mapping[str, str]) -> list[str]:
    """Return every error of the entries, each with its key."""
    return [
        f"{_shown(key)}: {line}"
        for key in sorted(entries)
        for line in (_errors(key, entries[key]) or _missing_scripts(key, entries))
    ]


def _missing_scripts(key: str, entries: Mapping[str, str]) -> list[str]:
    """Return an error for each hook of a valid entry whose script is not in the settings."""
    hooks = parse(entries[key]).hooks if key.startswith(TOPIC) else None
    return [
        f"hooks.{hook.value}: there is no script {_shown(name)}: put {_shown(f'{SCRIPT}{name}')}, or change the hook"
        for hook, name in (hooks.scripts() if hooks is not None else ())
        if f"{SCRIPT}{name}" not in entries
    ]


def _errors(key: str, value: str) -> list[str]:
    try:
        key_bytes, value_bytes = len(key.encode()), len(value.encode())
    except UnicodeEncodeError:
        return ["the key or the value is not UTF-8"]
    found: list[str] = []
    if not 1 <= key_bytes <= KEY_BYTES:
        found.append(f"a key has 1 to {KEY_BYTES} bytes, not {key_bytes}")
    if not key.isprintable() and has_control(key):
        found.append("a key has no control characters")
    most_bytes = SCRIPT_BYTES if key.startswith(SCRIPT) else VALUE_BYTES
    if value_bytes > most_bytes:
        found.append(f"the value has {value_bytes} bytes, more than {most_bytes}")
    elif known := next((prefix for prefix in _CHECKS if key.startswith(prefix)), None):
        error = _NAMES.get(known, pattern_error)(key.removeprefix(known))
        found += [] if error is None else [error]
        try:
            _CHECKS[known](value)
        except Invalid as invalid:
            found += invalid.message.split("\n")
    return found


def _shown(key: str) -> str:
    return key[:_KEY_CHARACTERS] if key.isprintable() else json.dumps(key)[:_KEY_CHARACTERS]


Changed = Callable[[Settings | FoqsError], None]


class SettingsStore(Protocol):
    """The store of settings. Its method is called on the event loop, returns at once, and calls back on the loop.

    Three implementations pass one contract suite: ZooKeeper (a part of `foqs.zk.protocol.FactStore`), the shards of a
    lone host (`foqs.server.settings`), and the fake ZooKeeper of the simulations."""

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        """Replace the stored settings of a namespace by what `change` makes of them, in one step: if they are replaced
        in between, they are read and `change` is asked again.

        `change` may run on any thread and several times. If it returns its argument, nothing is written. `done`
        gets the settings as stored from now on, or the FoqsError that `change` raised; Invalid: the stored ones are
        not readable; Unavailable: nothing was changed; OutcomeUnknown.
        """


class Standing(Enum):
    """The age of a copy, compared with the known settings."""

    SAME = "same"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "of another history"


def standing(copy: Settings, known: Settings) -> Standing:
    """Compare two documents of a namespace. Two that were made apart and have equal entries are of one history."""
    if copy.history.leads_to(known.history):
        return Standing.OLDER if copy.version < known.version else Standing.SAME
    if known.history.leads_to(copy.history):
        return Standing.NEWER
    if copy.entries == known.entries:
        return Standing.NEWER if copy.version > known.version else Standing.OLDER
    return Standing.FOREIGN


def adopt(copy: Settings, place: str) -> Change:
    """Return the change that puts `copy`, found in `place`, where older settings are stored. It raises Conflict."""

    def change(stored: Settings) -> Settings:
        found = standing(copy, stored)
        if found is Standing.FOREIGN:
            raise Conflict(conflict(copy, place, stored, "the cluster"))
        return copy.united(stored) if found is Standing.NEWER else stored.united(copy)

    return change


def conflict(copy: Settings, place: str, other: Settings, other_place: str) -> str:
    """Return an error about two documents, neither of which was made from the other."""
    return (
        f"the settings of namespace {copy.ns} in {place} (version {copy.version}) and in {other_place} "
        f"(version {other.version}) were made apart, and their entries differ"
    )


def remedy(shard: int) -> str:
    """Return the commands that end a conflict of a shard's copy."""
    return (
        f"`foqs shards settings` compares the copies, `foqs shards settings {shard} --export` prints the copy of shard "
        f"{shard}, and `foqs shards settings {shard} --discard` removes them"
    )


def newest(copies: Iterable[tuple[int, Settings]]) -> dict[str, tuple[int, Settings]]:
    """Return the newest copy of each namespace with its shard. Raises Conflict if copies were made apart."""
    found: dict[str, tuple[int, Settings]] = {}
    for shard, copy in copies:
        before, other = found.get(copy.ns, (shard, copy))
        match standing(copy, other):
            case Standing.FOREIGN:
                low, high = sorted(((shard, copy), (before, other)), key=lambda one: one[0])
                raise Conflict(
                    f"{conflict(low[1], f'shard {low[0]}', high[1], f'shard {high[0]}')}: {remedy(high[0])}; "
                    f"so with {low[0]} for shard {low[0]}"
                )
            case Standing.NEWER:
                found[copy.ns] = shard, copy
            case Standing.SAME:
                found[copy.ns] = before, other.united(copy)
            case _:
                found.setdefault(copy.ns, (shard, copy))
    return found


def enough(shards: Collection[int], held: Collection[int]) -> bool:
    """Return True if `held` is a majority of `shards`. Of an even number the lowest counts twice: two majorities
    always have a shard in common, and the lower of two shards suffices."""
    votes = len(shards) + (len(shards) % 2 == 0)
    cast = len(set(shards) & set(held)) + (len(shards) % 2 == 0 and min(shards, default=0) in held)
    return 2 * cast > votes
