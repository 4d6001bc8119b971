"""How the tenants of a topic share its deliveries: the field `fair` of a topic's policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from foqs.bounds import MOST_WEIGHT
from foqs.errors import Invalid
from foqs.policies.entries import Entry, checked, shown
from foqs.policies.names import pattern_error
from foqs.policies.patterns import Patterns

Unit = Literal["items", "bytes", "busy"]
Scope = Literal["tenant", "topic"]
Weight = Annotated[int, Field(ge=1, le=MOST_WEIGHT)]


@dataclass(frozen=True, slots=True)
class FairRule:
    """`unit`: what a delivery costs its tenant: 1, its bytes, or the time of its lease. `scope`: priorities count
    inside a tenant, or over the whole topic. `weights` of fairness keys in this topic. `balance`: between hosts,
    too."""

    unit: Unit
    scope: Scope
    weights: Patterns[int]
    balance: bool


class FairEntry(Entry):
    unit: Unit = "items"
    scope: Scope = "tenant"
    weights: dict[Annotated[str, checked(pattern_error)], Weight] = Field(default_factory=dict)
    balance: bool = True

    @cached_property
    def rule(self) -> FairRule:
        return FairRule(self.unit, self.scope, Patterns(self.weights), self.balance)


def parse_weight(text: str) -> int:
    """Return the value of a settings key `weight.<fairness key or prefix*>`. Raises Invalid."""
    weight = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= weight <= MOST_WEIGHT:
        raise Invalid(f"a weight is a whole number from 1 to {MOST_WEIGHT}, not {shown(text)}")
    return weight
