"""Entries of a namespace's settings as pages show them: their kinds, their text in a form, the layers of a policy, and
what a change changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from foqs.checks import counted
from foqs.settings_log import Value, ValueDigest

TOPIC = "topic."
KINDS: Mapping[str, str] = {
    TOPIC: "Topic policies",
    "throttle.": "Throttles",
    "weight.": "Weights",
    "schedule.": "Schedules",
    "push.": "Push targets",
    "script.": "Scripts",
    "": "Other entries, for your own programs and for scripts",
}
"""The kinds of entries by the beginning of their keys, in the order of the page."""
_MOST_LETTERS = 64 << 10
"""A longer text is no JSON here: the service takes none of that length."""
_AS_JSON = (TOPIC, "throttle.", "schedule.", "push.")


def kind_of(key: str) -> str:
    """
    >>> kind_of("topic.mail"), kind_of("plans/acme")
    ('topic.', '')
    """
    return next(kind for kind in KINDS if key.startswith(kind))


def indented(value: str) -> str:
    """Return a JSON object or list with a line for each field, any other text as it is.

    >>> print(indented('{"paused": true}'))
    {
      "paused": true
    }
    """
    found = _parsed(value)
    return value if found is None else json.dumps(found, ensure_ascii=False, indent=2)


def editable(key: str, value: str) -> str:
    """Return the text for a form. JSON that foqs does not read stays as its author wrote it."""
    return indented(value) if key.startswith(_AS_JSON) else value


def stored(key: str, text: str) -> str:
    """Return the value of an entry from the text of a form. JSON that foqs reads loses the spaces of `editable`, as a
    value has a bound."""
    found = _parsed(text) if key.startswith(_AS_JSON) else None
    return text if found is None else json.dumps(found, ensure_ascii=False)


def _parsed(text: str) -> Any:
    """Return an object or list that JSON can write as it was; else None, so that the service sees what a user wrote."""
    if len(text) > _MOST_LETTERS:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_refused, parse_float=_number)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # a half of a surrogate pair is no text of a page
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a field is there twice")
    return made


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def _number(text: str) -> float:
    number = float(text)
    if repr(number) != text:
        raise ValueError("the number would change")
    return number


# ------------------------------------------------------------------------------------- layers of a policy


class Layer(NamedTuple):
    """A field of a policy: the entry that gives its value, and (key, value) of the entries that it overrules."""

    field: str
    value: str
    key: str
    overruled: tuple[tuple[str, str], ...]


def layers_of(entries: Mapping[str, str], name: str) -> list[Layer]:
    """Return the fields of the policy that all topics with the name, or with the prefix of a `prefix*`, have. For each
    field the exact name wins, then the longest prefix. Entries that are no JSON objects have no field."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key in _over(entries, name):
        value = _parsed(entries[key])
        for field, one in value.items() if isinstance(value, dict) else ():
            found.setdefault(field, []).append((key, json.dumps(one, ensure_ascii=False)))
    return [Layer(field, rows[0][1], rows[0][0], tuple(rows[1:])) for field, rows in sorted(found.items())]


def _over(entries: Mapping[str, str], name: str) -> Iterator[str]:
    """Yield the keys of the entries for the name. The first key wins."""
    if TOPIC + name in entries:
        yield TOPIC + name
    stem = name.removesuffix("*")
    longest = len(stem) - 1 if name.endswith("*") else len(stem)
    for length in range(longest, -1, -1):
        key = f"{TOPIC}{stem[:length]}*"
        if key in entries:
            yield key


def inside(entries: Iterable[str], name: str) -> list[str]:
    """Return the keys of policies that win over that of a `prefix*`, for the topics that they name."""
    if not name.endswith("*"):
        return []
    head = TOPIC + name.removesuffix("*")
    return sorted(key for key in entries if key.startswith(head) and key != TOPIC + name)


# ------------------------------------------------------------------------------------- differences


class Difference(NamedTuple):
    """What a change did to a field, or with the field "" to the whole value. None: there was, or is, none."""

    field: str
    old: str | None
    new: str | None


def differences(old: Value, new: Value) -> list[Difference]:
    """Return the fields of two JSON objects that differ; for other values one difference, of the whole."""
    before, after = _fields(old), _fields(new)
    if before is None or after is None:
        return [Difference("", said(old), said(new))]
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if not changed:
        return [Difference("", said(old), said(new))]
    return [Difference(key, before.get(key), after.get(key)) for key in sorted(changed)]


def _fields(value: Value) -> dict[str, str] | None:
    found = _parsed(value) if isinstance(value, str) else None
    if not isinstance(found, dict):
        return None
    return {key: json.dumps(one, ensure_ascii=False) for key, one in found.items()}


def said(value: Value) -> str | None:
    if isinstance(value, ValueDigest):
        return f"({counted(value.size_bytes, 'byte')} that the log does not have, digest {value.digest})"
    return value if value is None else indented(value)
