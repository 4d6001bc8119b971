"""The rules of an item against the policy of its topic: which of both counts.

Rules belong to the lane: each distinct set of rules in a topic is a lane of its own, so an item has no row for them. A
rule wins over the topic's policy, but not over the bounds that the policy enforces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from foqs.bounds import YEAR_MS
from foqs.checks import I32_MAX
from foqs.errors import Invalid
from foqs.ids import OnDuplicate, Until
from foqs.policies.entries import MOST_PARSED, RetryEntry, name_error, read
from foqs.policies.topic_policy import KeepEntry, TopicPolicy
from foqs.rules import NO_RULES, STORED_RULES_BYTES, ItemRules, RetryKind, RetryRule, pack_rules

_KINDS: Mapping[int, RetryKind] = {1: "constant", 2: "linear", 3: "exponential"}  # the contract's
_RANGES = {"max_attempts": I32_MAX, "max_total_ms": YEAR_MS, "keep_ms": YEAR_MS}
_KEEP = KeepEntry()
_UNTIL = frozenset(map(int, Until))
_ON_DUPLICATE = frozenset(map(int, OnDuplicate))


def rules_of(given: Any) -> ItemRules | None:
    """Return the rules of the contract's ItemRules, None if it has none. Raises Invalid."""
    asked = given.retry_rule
    retry = None
    if asked is not None:
        retry = asked.kind, asked.first_ms, asked.step_ms, asked.factor, asked.longest_ms, asked.jitter
    return _checked(
        retry, given.max_attempts, given.max_total_ms, given.dead_topic, given.keep_ms, given.exact_attempts
    )


def of_spec(spec: Any) -> tuple[ItemRules | None, int]:
    """Return the rules of an item, and its `dedup_until`, 0 for WINDOW. Check its `on_duplicate`. Raises Invalid."""
    rules = None if spec.rules is None else rules_of(spec.rules)
    if spec.on_duplicate:
        if spec.on_duplicate not in _ON_DUPLICATE:
            raise Invalid(f"on_duplicate is {spec.on_duplicate}, not KEEP or REPLACE")
        if spec.dedup_key is None:
            raise Invalid("on_duplicate needs a dedup_key")
    until = spec.dedup_until
    if not until:
        return rules, 0
    if until not in _UNTIL:
        raise Invalid(f"dedup_until is {until}, not WINDOW, STARTED or DONE")
    if spec.dedup_key is None:
        raise Invalid("dedup_until needs a dedup_key")
    return rules, 0 if until == Until.WINDOW else int(until)


@lru_cache(maxsize=MOST_PARSED)
def _checked(retry: tuple[Any, ...] | None, *values: Any) -> ItemRules | None:
    rules = ItemRules(None if retry is None else _retry(*retry), *values)
    for name, most in _RANGES.items():
        value = getattr(rules, name)
        if value is not None and not 0 <= value <= most:
            raise Invalid(f"rules.{name} is {value}, not in 0..{most}")
    if rules.dead_topic is not None and (error := name_error(rules.dead_topic)) is not None:
        raise Invalid(f"rules.dead_topic: {error}")
    if (size := len(pack_rules(rules))) > STORED_RULES_BYTES:
        raise Invalid(f"rules take {size} bytes as JSON, more than {STORED_RULES_BYTES}: give a shorter dead_topic")
    return None if rules == NO_RULES else rules


def _retry(kind: Any, *values: Any) -> RetryRule:
    if kind not in _KINDS:
        raise Invalid(f"rules.retry_rule.kind is {kind}, not CONSTANT, LINEAR or EXPONENTIAL")
    rule = RetryRule(_KINDS[kind], *values)
    _entry(rule)
    return rule


@lru_cache(maxsize=MOST_PARSED)
def _entry(rule: RetryRule) -> RetryEntry:
    """Raises Invalid."""
    fields = {name: value for name, value in rule._asdict().items() if value is not None}
    try:
        return read(RetryEntry, json.dumps(fields), "rules.retry_rule")
    except Invalid as error:
        raise Invalid("\n".join(f"rules.retry_rule.{line}" for line in error.message.splitlines())) from None


def applied(policy: TopicPolicy, rules: ItemRules) -> TopicPolicy:
    """Return the policy of an item with these rules in a topic with this policy."""
    attempts, total_ms, enforced = rules.max_attempts, rules.max_total_ms, policy.enforce
    made: dict[str, Any] = {}
    if rules.retry is not None:
        made["retry"] = _entry(rules.retry)
    if attempts is not None:
        made["max_attempts"] = _tighter(attempts, policy.max_attempts) if "max_attempts" in enforced else attempts
    if total_ms is not None:
        made["max_total_ms"] = _tighter(total_ms, policy.max_total_ms) if "max_total_ms" in enforced else total_ms
    if rules.dead_topic is not None:
        made["dead_topic"] = rules.dead_topic
    if rules.exact_attempts is not None:
        made["exact_attempts"] = rules.exact_attempts
    if rules.keep_ms is not None:
        made["keep"] = _keep(policy, rules.keep_ms)
    return replace(policy, **made)


def _tighter(one: int, other: int) -> int:
    """Return the lower one of two limits, of which 0 is none."""
    return min(one, other) if one and other else one or other


def _keep(policy: TopicPolicy, keep_ms: int) -> KeepEntry | None:
    of_policy = policy.keep
    completed_ms = failed_ms = keep_ms
    if "keep_ms" in policy.enforce:
        completed_ms = min(keep_ms, 0 if of_policy is None else of_policy.completed_ms)
        failed_ms = min(keep_ms, 0 if of_policy is None else of_policy.failed_ms)
    if not (completed_ms or failed_ms):
        return None
    kept = {"completed_ms": completed_ms, "failed_ms": failed_ms, "results": True}
    return (of_policy or _KEEP).model_copy(update=kept)
