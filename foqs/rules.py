"""Rules that an item brings, as values: how often it is tried, where it goes then, and how long it is kept."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

RetryKind = Literal["constant", "linear", "exponential"]
MOST_RULES_BYTES = 512
"""The most that rules take in an answer, for each item."""
STORED_RULES_BYTES = 768
"""The most that rules take in the database, as JSON. A name with many quotes takes twice its bytes."""
MOST_RULES = 256
"""Distinct sets of rules that a topic may have on a shard at a time."""
_MOST_KNOWN = 10_000
_UNTIL, _MEMBERS = "dedup_until", "batch"


class RetryRule(NamedTuple):
    """The delays of an item's failures, as `retry` of a policy has them. None: as `retry` has it by default."""

    kind: RetryKind
    first_ms: int | None = None
    step_ms: int | None = None
    factor: float | None = None
    longest_ms: int | None = None
    jitter: float | None = None


class ItemRules(NamedTuple):
    """The rules of an item. None: as the topic's policy says. `max_attempts` and `max_total_ms` 0: no limit. `keep_ms`:
    how long the item is kept after its end, with the result of its ack; 0: not at all."""

    retry: RetryRule | None = None
    max_attempts: int | None = None
    max_total_ms: int | None = None
    dead_topic: str | None = None
    keep_ms: int | None = None
    exact_attempts: bool | None = None


NO_RULES = ItemRules()


def as_json(rules: ItemRules) -> dict[str, Any]:
    """Return the rules that are set, with the names of the contract."""
    shown = _set(rules)
    if rules.retry is not None:
        shown["retry"] = _set(rules.retry)
    return shown


def _set(fields: RetryRule | ItemRules) -> dict[str, Any]:
    return {name: value for name, value in fields._asdict().items() if value is not None}


def pack_rules(rules: ItemRules | None) -> bytes:
    """Return the rules as they are stored: `as_json`, in the order of the names. None: empty."""
    return b"" if rules is None else _text(as_json(rules)).encode()


def pack_lane(rules: ItemRules | None, until: int, members: bool = False) -> bytes:
    """Return the rules of a lane as they are stored, with the end of its items' keys (`foqs.ids.Until`), and if they
    are members of batches."""
    if not (until or members):
        return pack_rules(rules)
    more = {name: value for name, value in ((_UNTIL, until), (_MEMBERS, members)) if value}
    return _text({**({} if rules is None else as_json(rules)), **more}).encode()


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=_MOST_KNOWN)
def unpack_rules(stored: bytes) -> ItemRules | None:
    """Raises ValueError or TypeError for bytes that `pack_rules` did not make."""
    if not stored:
        return None
    document = json.loads(stored)
    for name in (_UNTIL, _MEMBERS):
        document.pop(name, None)
    if not document:
        return None
    retry = document.pop("retry", None)
    return ItemRules(**document, retry=None if retry is None else RetryRule(**retry))


@lru_cache(maxsize=_MOST_KNOWN)
def unpack_until(stored: bytes) -> int:
    """Return the end of the keys of a lane's items."""
    return int(json.loads(stored).get(_UNTIL, 0)) if stored else 0


@lru_cache(maxsize=_MOST_KNOWN)
def unpack_members(stored: bytes) -> bool:
    """Return True if the items of a lane are members of batches."""
    return bool(json.loads(stored).get(_MEMBERS)) if stored else False
