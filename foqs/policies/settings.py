"""The settings of a namespace: a flat map of text keys to text values under one version."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field

from foqs.checks import is_text
from foqs.errors import Conflict, Invalid
from foqs.hooks.protocol import SCRIPT_BYTES
from foqs.policies.dead_topics import DeadTopics, says_something
from foqs.policies.fair import parse_weight
from foqs.policies.history import History
from foqs.policies.hook_entry import check_script
from foqs.policies.names import pattern_error, script_name_error
from foqs.policies.throttle_entry import parse_throttle
from foqs.policies.topic_policy import PREFIX, parse

TOPIC = PREFIX
THROTTLE = "throttle."
WEIGHT = "weight."
SCRIPT = "script."
MOST_BYTES = 900_000
VALUE_BYTES = 4_096
KEY_BYTES = 512
_KEY_CHARACTERS = 80
_ENTRIES, _HEAD_BYTES = b',"entries":', 2_000


@dataclass(frozen=True, slots=True)
class Settings:
    """`version` 0: they were never written. Each change adds 1. `born`, `past`: see `foqs.policies.history`."""

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
        """Return what the entries say in vain, one text each. With `changed`: where one of these keys has a part."""
        found = _dead_topics(self.entries).warnings()
        return [one.text for one in found if changed is None or not one.keys.isdisjoint(changed)]

    def faults(self) -> list[str]:
        """Return the errors that a change of all these settings would have beside those of single entries."""
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
}
"""By prefix of keys that foqs knows: what raises Invalid with every error of a value."""
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
    if not key.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key):
        found.append("a key has no control characters")
    most_bytes = SCRIPT_BYTES if key.startswith(SCRIPT) else VALUE_BYTES
    if value_bytes > most_bytes:
        found.append(f"the value has {value_bytes} bytes, more than {most_bytes}")
    elif known := next((prefix for prefix in _CHECKS if key.startswith(prefix)), None):
        error = (script_name_error if known == SCRIPT else pattern_error)(key.removeprefix(known))
        found += [] if error is None else [error]
        try:
            _CHECKS[known](value)
        except Invalid as invalid:
            found += invalid.message.split("\n")
    return found


def _shown(key: str) -> str:
    return key[:_KEY_CHARACTERS] if key.isprintable() else json.dumps(key)[:_KEY_CHARACTERS]
