"""The rules of an item, which it brings in place of its topic's policy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from thriftpy2.thrift import TType

from foqs import rules as values
from foqs.enums import NamedInt
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.travel import Value


class RetryKind(NamedInt):
    """How the delays of a failed item grow."""

    CONSTANT = 1
    LINEAR = 2
    EXPONENTIAL = 3


@dataclass(slots=True)
class RetryRule(Value):
    """The delay before attempt n + 1: `first_ms` (CONSTANT), `first_ms + (n - 1) * step_ms` (LINEAR) or `first_ms *
    factor ** (n - 1)` (EXPONENTIAL), at most `longest_ms`. `jitter`: the part of it that is random, 0 to 1. None: the
    service's default."""

    thrift_spec: ClassVar[Any] = idl.RetryRule.thrift_spec

    kind: RetryKind = RetryKind.EXPONENTIAL
    first_ms: int | None = None
    step_ms: int | None = None
    factor: float | None = None
    longest_ms: int | None = None
    jitter: float | None = None


@dataclass(slots=True)
class ItemRules(Value):
    """What an item says in place of its topic's policy; None: nothing. A bound that the policy lists in `enforce` holds
    all the same.

    retry           delays after failed attempts
    max_attempts    deliveries at most; 0: no limit
    max_total_ms    an attempt that ends this long after the first possible delivery was the last one; 0: no limit
    dead_topic      where the item goes after its last attempt: a topic whose policy has no dead-letter topic
    keep_ms         how long the item is kept after its end, with its result; 0: not at all
    exact_attempts  count each delivery exactly, also through crashes: its lease is committed first

    Each distinct set of rules in a topic costs a lane: use few of them, at most 256 at a time.
    """

    thrift_spec: ClassVar[Any] = {
        **idl.ItemRules.thrift_spec,
        1: (TType.STRUCT, "retry", RetryRule, False),
    }

    retry: RetryRule | None = None
    max_attempts: int | None = None
    max_total_ms: int | None = None
    dead_topic: str | None = None
    keep_ms: int | None = None
    exact_attempts: bool | None = None


def rules_json(rules: ItemRules) -> dict[str, Any]:
    """Return the rules as commands write them."""
    retry = rules.retry
    rule = None
    if retry is not None:
        kind: Any = RetryKind(retry.kind).name.lower()
        rule = values.RetryRule(kind, *[getattr(retry, name) for name in values.RetryRule._fields[1:]])
    return values.as_json(values.ItemRules(rule, *[getattr(rules, name) for name in values.ItemRules._fields[1:]]))


def rules_of_json(given: object) -> ItemRules:
    """Return the rules that `rules_json` wrote, or a user. Raises Invalid."""
    fields = _fields("rules", given, values.ItemRules._fields)
    if fields.get("retry") is not None:
        retry = _fields("rules.retry", fields["retry"], values.RetryRule._fields)
        kind = retry.get("kind")
        if not isinstance(kind, str) or kind.upper() not in RetryKind.__members__:
            raise Invalid(f"rules.retry.kind is {json.dumps(kind)}, not constant, linear or exponential")
        fields["retry"] = RetryRule(**{**retry, "kind": RetryKind[kind.upper()]})
    return ItemRules(**fields)


def _fields(name: str, given: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Invalid(f"{name} is not a JSON object")
    if unknown := [one for one in given if one not in known]:
        raise Invalid(f"{name}: unknown field {unknown[0]!r}")
    return given
