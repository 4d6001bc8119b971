"""The policy of a topic: an entry of the settings, and the policy that all entries for a topic make.

The field `hooks` names the scripts that run for the topic, values of settings `script.<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from foqs.bounds import LIMITS, MOST_STORED, NAME_BYTES, YEAR_MS
from foqs.checks import I32_MAX
from foqs.errors import Invalid
from foqs.hooks.protocol import Hook, Script, source_error
from foqs.policies.entries import (
    MOST_PARSED,
    TOPIC,
    Duration,
    Entry,
    FairEntry,
    Patterns,
    RetryEntry,
    checked,
    name_error,
    read,
    script_name_error,
    throttle_key_error,
    throttles_error,
)
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE

DEAD_SUFFIX = ".dlq"
MOST_KEPT = 100_000
_LATER = frozenset({"refuse_late"})
"""Fields of features that this version does not have."""

Broken = Literal["refuse", "default"]
Enforced = Literal["max_attempts", "max_total_ms", "keep_ms"]
"""Bounds that no rule of an item exceeds."""
ScriptName = Annotated[str, checked(script_name_error)]
ThrottleKey = Annotated[str, checked(throttle_key_error)]
TenantName = Annotated[str, checked(lambda name: name_error(name) if name else None)]
"""A fairness key; "" for the items without one."""
_MOST_PAUSED = 1_000


def _paused_error(names: tuple[str, ...]) -> str | None:
    return f"there are {len(names)} tenants, more than {_MOST_PAUSED}" if len(names) > _MOST_PAUSED else None


class HooksEntry(Entry):
    """The scripts that run for a topic's items, by the names that `script.<name>` gives them."""

    on_enqueue: ScriptName | None = None
    """The script that decides about each item that is enqueued."""
    on_failure: ScriptName | None = None
    """The script that decides about each item that failed."""
    when_broken: Broken | None = None
    """While calls of a script fail, items are refused (`refuse`), or handled as without it (`default`). Not set: they
    are refused if the script sets throttle keys."""

    def script(self, hook: Hook) -> str | None:
        return self.on_enqueue if hook is Hook.ON_ENQUEUE else self.on_failure

    def scripts(self) -> list[tuple[Hook, str]]:
        """Return each hook that has a script, with the script's name."""
        return [(hook, name) for hook in Hook if (name := self.script(hook)) is not None]

    def refuses(self, script: Script) -> bool:
        """Return True if items are refused while calls of the script fail. By default a script that sets throttle keys
        does so: without these an item would pass the throttles."""
        return script.sets_throttle_keys if self.when_broken is None else self.when_broken == "refuse"


def check_script(source: str) -> None:
    """Check the value of a settings key `script.<name>`, but for its syntax. Raises Invalid."""
    error = source_error(source)
    if error is not None:
        raise Invalid(error)


class DeadEntry(Entry):
    """Where the items of a topic go after their last attempt."""

    topic: Annotated[str, checked(name_error)] | None = None
    """The dead-letter topic. Not set: the topic's name with `.dlq` behind it."""
    ttl_ms: Annotated[int, Field(ge=1, le=YEAR_MS)] | None = None
    """Dead letters are removed after this time. Not set: never."""


class KeepEntry(Entry):
    """How long a topic keeps items that have ended."""

    completed_ms: Duration = 0
    """Acked items are kept for this time; 0: not at all."""
    failed_ms: Duration = 0
    """Items that failed for good, in a topic without a dead-letter topic, are kept for this time; 0: not at all."""
    results: bool = True
    """Acked items are kept with their results."""
    most: Annotated[int, Field(ge=1, le=MOST_STORED)] = MOST_KEPT
    """At most this many items of the topic are kept in a shard. The oldest go first."""


class OrderEntry(Entry):
    """What a failure does to the items with the same order key."""

    on_failure: Literal["block", "skip"] = "block"
    """While an item waits for its retry, the next ones of its order key wait too (`block`), or are delivered
    (`skip`)."""


_FAIR = FairEntry()
"""One object for all entries: pydantic would copy a default with a dict for each entry."""
_ORDER = OrderEntry()


class PolicyEntry(Entry):
    """The value of a settings key `topic.<name or prefix*>`. Only the fields that it names count."""

    priority: Annotated[int, Field(ge=-I32_MAX - 1, le=I32_MAX)] = 0
    """The priority of enqueued items that have 0; lower is more urgent."""
    lease_ms: Annotated[int, Field(ge=LIMITS.lease_min_ms, le=LIMITS.lease_max_ms)] | None = None
    """The duration of leases of enqueued items that do not set it. Not set: the host's `limits.lease_default_ms`."""
    ttl_ms: Annotated[int, Field(ge=1, le=YEAR_MS)] | None = None
    """Enqueued items that do not set it are removed after this time, unless they are leased then. Not set: never."""
    delay_ms: Duration = 0
    """The delay of enqueued items that do not set one."""
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    """How often an enqueued item may be delivered that says `AT_LEAST_ONCE`, which every client sends."""
    paused: bool = False
    """No item is delivered. Enqueues are accepted, leases end as usual, and consumers wait."""
    paused_tenants: Annotated[tuple[TenantName, ...], Field(strict=False), checked(_paused_error)] = ()
    """Fairness keys whose items are not delivered, at most 1,000; `""` for the items without one."""
    closed: bool = False
    """An enqueue is UNAVAILABLE, so clients retry it until their timeout. Items are delivered."""
    max_stored: Annotated[int, Field(ge=0, le=MOST_STORED)] | None = None
    """The most items in any state, over all hosts. Beyond it an enqueue is OVERLOADED, and clients retry it. 0, or not
    set: no bound."""
    fair: FairEntry = Field(default_factory=lambda: _FAIR)
    """How the tenants of the topic share its deliveries."""
    throttles: Annotated[tuple[ThrottleKey, ...], Field(strict=False), checked(throttles_error)] = ()
    """Throttle keys, at most 8, that all items of the topic have besides their own."""
    per_worker: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Items that a worker process holds at a time, over all its workers. Not set: no bound."""
    retry: RetryEntry | None = RetryEntry(kind="exponential")
    """The delay after a failed attempt. `null`: what the consumer asks for (a `Worker`: its `backoff`)."""
    max_attempts: Annotated[int, Field(ge=0, le=I32_MAX)] = 25
    """An item is a dead letter when this many attempts ended without an ack. 0: no limit. A limit that is lowered holds
    from the next delivery on."""
    max_total_ms: Duration = 0
    """An attempt that ends this long after the first possible delivery was the last one, unless the consumer asked for
    a delay (`Retry`). The delay of the enqueue does not count, and a redrive begins again. 0: no limit."""
    exact_attempts: bool = False
    """A crash of a host gives an item no extra attempt. Each delivery then waits for the database."""
    stuck_after_ms: Duration = 0
    """A lease ends at most this long after the delivery, although the worker extends it. 0: no limit."""
    dead: DeadEntry | None = DeadEntry()
    """Where dead letters go. `null`: they are removed at once."""
    hooks: HooksEntry | None = None
    """The scripts that run for the items. `null`: none."""
    keep: KeepEntry | None = None
    """How long items are kept after their end, with their results. `null`: not at all."""
    enforce: Annotated[tuple[Enforced, ...], Field(strict=False)] = ()
    """Bounds that hold for items with rules of their own, too."""
    order: OrderEntry = Field(default_factory=lambda: _ORDER)
    """What a failure does to the items with the same order key."""
    on_end_topic: Annotated[str, checked(name_error)] | None = None
    """A topic that gets a small item for each item that ends: how, and with which result or failure. `null`: none."""


BUILT_IN_ENTRY = PolicyEntry()


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The effective policy of a topic. Times are in milliseconds; None means that there is none.

    `lease_ms`, `ttl_ms`, `delay_ms`, `priority`, `delivery`: for enqueued items that do not set them. `paused_tenants`:
    fairness keys whose items are not delivered; "" for the items without one. `throttles`:
    keys, sorted, that each item has besides its own. `per_worker`: items of a worker at a time, None without a bound.
    `retry`: delays of failed items. `max_attempts`, `max_total_ms` since the enqueue, `stuck_after_ms` since the
    delivery: 0 means no bound. `dead_topic`: where items go after their last attempt; without one they are removed.
    `keep`: None where no item is kept after its end. `enforce`: bounds that hold for items with rules, too.
    `order`: of items with order keys. `on_end_topic`: where an event of each item that ends is stored.
    `fills`: it has a value for enqueued items that do not set it. `plain`: it does nothing to an enqueue.
    """

    priority: int
    lease_ms: int | None
    ttl_ms: int | None
    delay_ms: int
    delivery: int
    paused: bool
    paused_tenants: frozenset[str]
    closed: bool
    max_stored: int | None
    fair: FairEntry
    throttles: tuple[str, ...]
    per_worker: int | None
    retry: RetryEntry | None
    max_attempts: int
    max_total_ms: int
    exact_attempts: bool
    stuck_after_ms: int
    dead_topic: str | None
    dead_ttl_ms: int | None
    hooks: HooksEntry | None
    keep: KeepEntry | None
    enforce: tuple[str, ...]
    order: OrderEntry
    on_end_topic: str | None
    fills: bool
    plain: bool


@lru_cache(maxsize=MOST_PARSED)
def parse(text: str) -> PolicyEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(PolicyEntry, text, "a topic policy", _LATER)


def effective(topic: str, layers: dict[str, PolicyEntry], *, dead: bool) -> TopicPolicy:
    """Return the policy that the entries in `layers`, which has one for each field, make. `dead`: the topic takes dead
    letters, so it has none of its own, and its items have ended."""
    one = {name: getattr(layers[name], name) for name in PolicyEntry.model_fields}
    entry: DeadEntry | None = None if dead else one["dead"]
    del one["dead"]
    one |= {
        "delivery": AT_MOST_ONCE if one["delivery"] == "at_most_once" else AT_LEAST_ONCE,
        "max_stored": one["max_stored"] or None,
        "throttles": tuple(sorted(one["throttles"])),
        "paused_tenants": frozenset(one["paused_tenants"]),
        "dead_topic": None if entry is None else entry.topic or dead_topic_of(topic),
        "dead_ttl_ms": None if entry is None else entry.ttl_ms,
        "hooks": _hooks(one["hooks"], dead=dead),
        "on_end_topic": None if dead else one["on_end_topic"],
    }
    keep: KeepEntry | None = one["keep"]
    one["keep"] = keep if keep is not None and (keep.completed_ms or keep.failed_ms) else None
    hooks, filling = one["hooks"], [one[name] for name in ("priority", "lease_ms", "ttl_ms", "delay_ms")]
    one["fills"] = any(filling) or one["delivery"] != AT_LEAST_ONCE
    hooked = hooks is not None and hooks.on_enqueue is not None
    one["plain"] = not (one["fills"] or one["closed"] or one["max_stored"] is not None or hooked)
    return TopicPolicy(**(one | {"max_attempts": 0, "max_total_ms": 0} if dead else one))


def event_circles(topics: Mapping[str, PolicyEntry]) -> list[str]:
    """Return an error for each circle of topics whose end events go to the next one. `topics`: entries by name or
    `prefix*`. A topic that takes dead letters has no events, and counts all the same: another entry may change that."""
    patterns = Patterns({key: (key, one.on_end_topic) for key, one in topics.items() if _names_events(one)})
    found, seen = list[str](), set[str]()
    for start in sorted({one.on_end_topic for one in topics.values() if one.on_end_topic is not None}):
        path: dict[str, str] = {}
        topic: str | None = start
        while topic is not None and topic not in seen and topic not in path:
            fitting = [value for _, value in patterns.fitting(topic)]
            path[topic], topic = fitting[-1] if fitting else ("", None)
        if topic in path:
            names = [*path][list(path).index(topic) :]
            found.append(_circle(names, [f"{TOPIC}{path[name]}" for name in names]))
        seen |= path.keys()
    return found


def _names_events(entry: PolicyEntry) -> bool:
    return "on_end_topic" in entry.model_fields_set


def _circle(names: list[str], keys: list[str]) -> str:
    said = " -> ".join([*names, names[0]])
    return (
        f"{', '.join(dict.fromkeys(keys))}: on_end_topic: each event that ends would store another one, for ever "
        f'({said}): put {{"on_end_topic": null}} in {TOPIC}{names[0]}, or name another topic'
    )


def _hooks(entry: HooksEntry | None, *, dead: bool) -> HooksEntry | None:
    """No script removes a dead letter: for those there is no hook of failures."""
    if entry is not None and dead:
        entry = entry.model_copy(update={"on_failure": None})
    return entry if entry is not None and entry.scripts() else None


def dead_topic_of(topic: str) -> str:
    """Return the default name of a topic's dead-letter topic, which has at most `NAME_BYTES`: longer names are cut
    at a character."""
    room = NAME_BYTES - len(DEAD_SUFFIX)
    return topic.encode()[:room].decode(errors="ignore") + DEAD_SUFFIX
