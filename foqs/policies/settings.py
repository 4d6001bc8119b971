"""The settings of a namespace: a flat map of text keys to text values under one version, its store, and its copies.

Copies are in ZooKeeper, in a host's memory, and in the database of each shard. The history of a document says which of
two copies is newer, or that they were made apart. A host acts on no copy that another change has replaced, and on none
of another history: the operator decides which one counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from foqs.checks import has_control, is_text
from foqs.errors import Conflict, FoqsError, Invalid
from foqs.hooks.protocol import SCRIPT_BYTES
from foqs.policies.dead_topics import DeadTopics, says_something
from foqs.policies.entries import (
    SCHEDULE,
    SCRIPT,
    THROTTLE,
    TOPIC,
    WEIGHT,
    parse_throttle,
    parse_weight,
    pattern_error,
    schedule_name_error,
    script_name_error,
)
from foqs.policies.schedules import check_schedule
from foqs.policies.topic_policy import check_script, parse

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
    `past`: see `History`."""

    ns: str
    version: int = 0
    entries: Mapping[str, str] = field(default_factory=dict)
    born: str = field(default="", compare=False, repr=False)
    past: tuple[str, ...] = field(default=(), compare=False, repr=False)

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
    ) -> Settings:
        """Return the next version, with `entries` and without the keys in `remove`. `nonce` differs for each change, on
        all hosts. Raises Conflict if this is not `expected_version`, and Invalid with every error, one a line."""
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
            errors += _dead_topics(made.entries).circles(touched)
        size_bytes = 0 if errors else len(made.encoded())
        if size_bytes > MOST_BYTES:
            errors.append(f"the settings take {size_bytes} bytes, more than {MOST_BYTES}: a key with * serves many")
        if errors:
            raise Invalid("\n".join(errors))
        return made

    def checked(self) -> Settings:
        """Return these settings. Raises Invalid if an entry is not valid."""
        errors = check(self.entries)
        if errors:
            raise Invalid(f"the settings of {self.ns} are not valid: {'; '.join(errors)}")
        return self

    def warnings(self, changed: Set[str] | None = None) -> list[str]:
        """Return a warning for each value without an effect. With `changed`: only warnings about one of these keys."""
        found = _dead_topics(self.entries).warnings()
        return [one.text for one in found if changed is None or not one.keys.isdisjoint(changed)]

    def faults(self) -> list[str]:
        """Return the errors of these settings together, which `check` of single entries does not find."""
        return _dead_topics(self.entries).circles(self.entries.keys())

    def encoded(self) -> bytes:
        """Return the document that is stored. Its history comes first, which `history_of` reads."""
        head = {"stamp": self.version, "born": self.born, "past": self.past}
        document = head | {"entries": dict(sorted(self.entries.items()))}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


_CHECKS: Mapping[str, Callable[[str], object]] = {
    TOPIC: parse,
    THROTTLE: parse_throttle,
    WEIGHT: parse_weight,
    SCRIPT: check_script,
    SCHEDULE: check_schedule,
}
"""The check of a value by the prefix of its key. It raises Invalid with every error."""
_NAMES: Mapping[str, Callable[[str], str | None]] = {SCRIPT: script_name_error, SCHEDULE: schedule_name_error}
"""The check of the rest of the key, where that may be no `prefix*`."""
Change = Callable[[Settings], Settings]


def decode(ns: str, document: bytes) -> Settings:
    """Read a stored document. Raises Invalid."""
    return parse_document(ns, document).checked()


def parse_document(ns: str, document: bytes) -> Settings:
    """Read a stored document without a check of its entries, which takes most of the time. Raises Invalid."""
    try:
        value = json.loads(document)
        version, entries = value["stamp"], value["entries"]
        born, past = value.get("born", ""), value.get("past", [])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Invalid(f"the settings of {ns} are not readable") from None
    texts = isinstance(entries, dict) and all(map(is_text, (*entries, *entries.values())))
    marks = isinstance(past, list) and all(map(is_text, (born, *past)))
    if type(version) is not int or version < 0 or not texts or not marks:
        raise Invalid(f"the settings of {ns} are not readable")
    return Settings(ns, version, entries, born, tuple(past))


def history_of(document: bytes) -> History | None:
    """Return the history of a document that `Settings.encoded` made, without reading its entries; None for another."""
    head, found, _ = document.partition(_ENTRIES)
    if not found or len(head) > _HEAD_BYTES:
        return None
    try:
        value = json.loads(head + b"}")
        return History(value["stamp"], value["born"], tuple(value["past"]))
    except (ValueError, KeyError, TypeError):
        return None


def _dead_topics(entries: Mapping[str, str]) -> DeadTopics:
    """Return the dead-letter topics of valid entries. Most settings say nothing about them: those are not parsed."""
    topics = {key.removeprefix(TOPIC): text for key, text in entries.items() if key.startswith(TOPIC)}
    if not any(says_something(name, text) for name, text in topics.items()):
        topics = {}
    return DeadTopics({name: parse(text) for name, text in topics.items()})


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
        return copy if found is Standing.NEWER else stored

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
            case _:
                found.setdefault(copy.ns, (shard, copy))
    return found


def enough(shards: Collection[int], held: Collection[int]) -> bool:
    """Return True if `held` is a majority of `shards`. Of an even number the lowest counts twice: two majorities
    always have a shard in common, and the lower of two shards suffices."""
    votes = len(shards) + (len(shards) % 2 == 0)
    cast = len(set(shards) & set(held)) + (len(shards) % 2 == 0 and min(shards, default=0) in held)
    return 2 * cast > votes
