"""The keys of topics, and the keys of lanes inside a shard."""

from __future__ import annotations

from typing import Any, NewType

from foqs.bounds import NAME_BYTES, THROTTLE_KEYS, THROTTLE_KEYS_BYTES
from foqs.rules import MOST_RULES_BYTES, ItemRules

TopicKey = tuple[str, str]
"""(namespace, topic)."""

LaneKey = NewType("LaneKey", object)
"""The key of a lane inside a shard: a type of its own, so that the type checker finds it in the place of a topic."""

ORDERED = 8
"""In place of an `Until`: the items of the lane have order keys."""
_BETWEEN = b"\0"
_TEXT_HEAD, _LIST_HEAD, _SIZE = 7, 8, 4
MOST_TENANCY_BYTES = (
    _TEXT_HEAD + NAME_BYTES + _LIST_HEAD + THROTTLE_KEYS * _SIZE + THROTTLE_KEYS_BYTES + MOST_RULES_BYTES
)
"""The most that the names and the rules of a lane take in an answer, for each item."""


def lane_key(
    key: TopicKey, fairness: str = "", throttles: tuple[str, ...] = (), rules: ItemRules | None = None, until: int = 0,
    members: bool = False,
) -> LaneKey:  # fmt: skip
    """Return the key of the lane with this fairness key, throttle set, which is in order, rules, and end of its items'
    deduplication keys (`foqs.ids.Until`), or ORDERED. `members`: its items belong to batches.

    The key of a topic's plain lane is `key` itself: a second tuple
    would take 72 bytes a topic. Keys of other lanes begin with `key`."""
    lane: Any
    if members:
        lane = (key, fairness, throttles, rules, until, members)
    elif until:
        lane = (key, fairness, throttles, rules, until)
    elif rules is not None:
        lane = (key, fairness, throttles, rules)
    else:
        lane = (key, fairness, throttles) if fairness or throttles else key
    return lane  # type: ignore[no-any-return]


def topic_key(key: LaneKey) -> TopicKey:
    topic: Any = key
    return topic if len(topic) == 2 else topic[0]  # type: ignore[no-any-return]


def tenancy_of(key: LaneKey) -> tuple[str, tuple[str, ...]]:
    """Return the fairness key and the throttle set of a lane."""
    lane: Any = key
    return ("", ()) if len(lane) == 2 else lane[1:3]


def rules_of(key: LaneKey) -> ItemRules | None:
    lane: Any = key
    return lane[3] if len(lane) > 3 else None


def until_of(key: LaneKey) -> int:
    """Return when the keys of the lane's items are free (`foqs.ids.Until`); 0: when their window ends. ORDERED: the
    items have order keys, and no deduplication keys."""
    lane: Any = key
    return lane[4] if len(lane) > 4 else 0


def has_members(key: LaneKey) -> bool:
    """Return True if the items of the lane belong to batches."""
    lane: Any = key
    return len(lane) == 6


def is_ordered(key: LaneKey) -> bool:
    """Return True if the items of the lane have order keys."""
    return until_of(key) == ORDERED


def fairness_of(key: LaneKey) -> str:
    lane: Any = key
    return "" if len(lane) == 2 else lane[1]


def tenancy_bytes(fairness: str, throttles: tuple[str, ...]) -> int:
    """Return what a fairness key and throttle keys take in an answer, for each item."""
    size = _TEXT_HEAD + len(fairness.encode()) if fairness else 0
    return size + (_LIST_HEAD + sum([_SIZE + len(one.encode()) for one in throttles]) if throttles else 0)


def is_plain(key: LaneKey) -> bool:
    """Return True if the lane has neither a fairness key nor throttle keys nor rules, and its items hold no keys."""
    lane: Any = key
    return len(lane) == 2


def is_of_tenant(key: LaneKey) -> bool:
    """Return True if the lane has a fairness key or throttle keys."""
    lane: Any = key
    return len(lane) != 2 and bool(lane[1] or lane[2])


def pack_throttles(throttles: tuple[str, ...]) -> bytes:
    """Return the throttle set as it is stored. No key has a control character."""
    return _BETWEEN.join([key.encode() for key in throttles])


def unpack_throttles(stored: bytes) -> tuple[str, ...]:
    return tuple([key.decode() for key in stored.split(_BETWEEN)]) if stored else ()
