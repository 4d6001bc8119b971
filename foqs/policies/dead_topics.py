"""Topics that take dead letters, as the settings of a namespace make them, and what that takes from their own policies.

A topic that takes dead letters has none of its own: its items are retried without a limit. A policy that says otherwise
was meant for something else. Then a change of the settings is refused, or it warns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from typing import Any, NamedTuple

from foqs.policies.entries import TOPIC, Patterns, shown
from foqs.policies.topic_policy import BUILT_IN_ENTRY, DEAD_SUFFIX, PolicyEntry, dead_topic_of

_OFF: Mapping[str, Any] = {"max_attempts": 0, "max_total_ms": 0, "dead": None, "hooks": None}
"""Fields that have no effect in a topic that takes dead letters, with the values that ask for none. Of `hooks` that is
`on_failure`."""
_STATES = frozenset({"paused", "paused_tenants", "closed"})
"""Fields that an operator changes without a thought of retries."""
_ONCE = ("retry", "max_attempts", "max_total_ms", "exact_attempts", "dead")
"""Fields without an effect on items that are delivered at most once."""
_MOST_NAMED = 3


class Warned(NamedTuple):
    """A warning, and the keys of the settings that have a part in it."""

    text: str
    keys: frozenset[str]


Namers = Mapping[str, list[str]]
"""By topic: the names and prefixes whose entries name it as their dead-letter topic."""


def namers_of(topics: Mapping[str, PolicyEntry]) -> Namers:
    """Return the topics that entries name as dead-letter topics. `topics`: by name or `prefix*`, without `topic.`."""
    found: dict[str, list[str]] = {}
    for key, entry in topics.items():
        if entry.dead is not None and entry.dead.topic is not None:
            found.setdefault(entry.dead.topic, []).append(key)
    return found


def why_dead(topic: str, namers: Namers) -> str | None:
    """Return why the topic takes dead letters; None if it does not."""
    keys = sorted(namers.get(topic, ()))
    if keys:
        named = ", ".join([f"{TOPIC}{key}" for key in keys[:_MOST_NAMED]])
        more = f" and {len(keys) - _MOST_NAMED:,} more" if len(keys) > _MOST_NAMED else ""
        return f"it takes the dead letters of {named}{more}"
    return f"its name ends with {DEAD_SUFFIX}" if topic.endswith(DEAD_SUFFIX) else None


class DeadTopics:
    """`topics` has the entries of the settings by name or `prefix*`, without `topic.`."""

    def __init__(self, topics: Mapping[str, PolicyEntry]) -> None:
        self._namers = namers_of(topics)
        self._topics = topics

    @cached_property
    def _patterns(self) -> Patterns[PolicyEntry]:
        return Patterns(self._topics)

    # ------------------------------------------------------------------------------------- circles

    def circles(self, changed: Set[str]) -> list[str]:
        """Return an error for each circle of dead-letter topics that has one of the keys in `changed`."""
        found: list[str] = []
        seen: set[str] = set()
        for start in sorted(self._namers):
            path: dict[str, str] = {}
            topic: str | None = start
            while topic is not None and topic not in seen and topic not in path:
                key, target = self._next(topic)
                path[topic], topic = key, target
            if topic is not None and topic in path:
                names = [*path][list(path).index(topic) :]
                keys = {*(path[name] for name in names), *(f"{TOPIC}{name}" for name in names)}
                # A prefix that fits its own dead-letter topic is usual: `topic.*`, say. It warns.
                certain = len(names) > 1 or path[topic] == f"{TOPIC}{topic}"
                if certain and not keys.isdisjoint(changed):
                    found.append(_circle(names, path))
            seen |= path.keys()
        return found

    def _next(self, topic: str) -> tuple[str, str | None]:
        """Return the key of the settings that names the dead-letter topic of `topic`, and that; "" for the built-in
        one, None where there is none. It is that of the policy which `topic` would have if it took no dead letters."""
        for key, entry in reversed(self._fitting(topic)):
            if "dead" in entry.model_fields_set:
                return f"{TOPIC}{key}", None if entry.dead is None else entry.dead.topic or dead_topic_of(topic)
        return "", None if _is_place(topic) else dead_topic_of(topic)

    # ------------------------------------------------------------------------------------- warnings

    def warnings(self) -> list[Warned]:
        """Return what the entries say in vain about topics that they name."""
        named = set(filter(_is_place, self._topics))
        found = [self._in_vain(topic) for topic in sorted(named | self._namers.keys())]
        for key in sorted(self._topics):
            found += [_at_most_once(key, self._topics[key]), _never_delivered(key, self._topics[key])]
        return [one for one in found if one is not None]

    def _in_vain(self, topic: str) -> Warned | None:
        why = why_dead(topic.removesuffix("*"), self._namers)
        assert why is not None, "it takes dead letters"
        by_key = self._off(topic)
        if not by_key:
            return None
        said = "; ".join(
            f"{', '.join(f'{field} {value}' for field, value in fields.items())} "
            f"({f'{TOPIC}{key}' if key else 'built in'})"
            for key, fields in by_key.items()
        )
        off = {field: value for field, value in _OFF.items() if any(field in fields for fields in by_key.values())}
        if not _is_place(topic):  # an entry of its own has 25 attempts
            off = {"max_attempts": 0} | off
        accept = f"To accept that, put {json.dumps(off)} in {TOPIC}{topic}"
        if topic in self._namers:
            accept = f"Name another dead.topic. {accept}"
        text = f"{TOPIC}{topic}: {said}: no effect. In effect max_attempts is 0 (no limit), because {why}. {accept}"
        keys = [topic, *self._namers.get(topic, ()), *by_key]
        return Warned(text, frozenset(f"{TOPIC}{key}" for key in keys))

    def _off(self, topic: str) -> dict[str, dict[str, str]]:
        """Return the fields that have no effect in a topic that takes dead letters, with their values, by the name or
        prefix whose entry has them; "": built in."""
        fields: dict[str, tuple[str, PolicyEntry]] = {}
        for key, entry in self._fitting(topic):
            fields |= dict.fromkeys(_OFF.keys() & entry.model_fields_set, (key, entry))
        found: dict[str, dict[str, str]] = {}
        for field, (key, entry) in sorted(fields.items(), key=lambda one: list(_OFF).index(one[0])):
            if has_effect(field, entry):
                found.setdefault(key, {})[field] = _value(field, entry)
        exact = self._topics.get(topic)
        lives = exact is not None and not exact.model_fields_set <= _STATES and not _is_place(topic)
        if lives and "max_attempts" not in fields:
            found[""] = {"max_attempts": str(BUILT_IN_ENTRY.max_attempts)}
        return found

    def _fitting(self, topic: str) -> list[tuple[str, PolicyEntry]]:
        """Return the entries that are meant for the topic, the closest one last. A prefix is not meant for the place of
        the dead letters of the topics that it fits."""
        if not _is_place(topic):
            return list(self._patterns.fitting(topic))
        exact = self._topics.get(topic)
        return [] if exact is None else [(topic, exact)]


def says_something(topic: str, text: str) -> bool:
    """Return False if the text of an entry can lead to no circle and no warning."""
    return any(word in text for word in ("dead", "at_most_once", "delay_ms", "\\u")) or _is_place(topic)


def _is_place(topic: str) -> bool:
    """Return True if the name, or the prefix, says that it is for dead letters."""
    return topic.removesuffix("*").endswith(DEAD_SUFFIX)


def has_effect(field: str, entry: PolicyEntry) -> bool:
    """Return True if the value of a field asks for something that a topic that takes dead letters lacks."""
    if field == "hooks":
        return entry.hooks is not None and entry.hooks.on_failure is not None
    if field == "on_end_topic":  # without a warning: it may come from a prefix such as topic.*
        return entry.on_end_topic is not None
    return field in _OFF and getattr(entry, field) != _OFF[field]


def _value(field: str, entry: PolicyEntry) -> str:
    if field == "hooks":
        return "on_failure"
    value = getattr(entry, field)
    return shown(value.model_dump(exclude_unset=True) if field == "dead" else value)


def _circle(names: list[str], path: Mapping[str, str]) -> str:
    keys = ", ".join(dict.fromkeys(path[name] for name in names if path[name]))
    if len(names) == 1:
        (name,) = names
        default = "" if name.endswith(DEAD_SUFFIX) else f" Without dead.topic it is {dead_topic_of(name)}."
        return f"{keys}: dead.topic is the topic itself, so max_attempts would have no effect.{default}"
    shown_names = " -> ".join([*names, names[0]])
    return (
        f"{keys}: the dead letters of {shown_names} go in a circle, so max_attempts would have no effect in these "
        "topics: name a dead.topic outside of the circle, or give one of them dead null"
    )


def _at_most_once(key: str, entry: PolicyEntry) -> Warned | None:
    own = entry.model_fields_set
    if entry.delivery != "at_most_once" or "delivery" not in own:
        return None
    fields: Iterable[str] = [field for field in _ONCE if field in own and getattr(entry, field)]
    fields = [*fields, *(["hooks.on_failure"] if "hooks" in own and has_effect("hooks", entry) else [])]
    if not fields:
        return None
    text = (
        f"{TOPIC}{key}: {', '.join(fields)}: no effect, because delivery is at_most_once: "
        "an item is removed after its first attempt"
    )
    return Warned(text, frozenset({f"{TOPIC}{key}"}))


def _never_delivered(key: str, entry: PolicyEntry) -> Warned | None:
    if entry.ttl_ms is None or entry.delay_ms < entry.ttl_ms or "delay_ms" not in entry.model_fields_set:
        return None
    text = (
        f"{TOPIC}{key}: ttl_ms is {entry.ttl_ms}, no more than delay_ms, {entry.delay_ms}: items that set neither are "
        "removed before they can be delivered, because a TTL counts from the enqueue"
    )
    return Warned(text, frozenset({f"{TOPIC}{key}"}))
