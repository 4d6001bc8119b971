"""Mutants of the throttles: see test_mutants.py."""

from __future__ import annotations

from typing import Any

from foqs.bounds import NANO, Quota
from foqs.engine.throttling import Rules, Throttling
from foqs.limits.bucket import Ask, Bucket, NamespaceTokens
from foqs.limits.throttle_key import ThrottleKey
from tests.sim_peers.mutants import MUTANTS, Patch, mutant


@mutant
def a_coordinator_begins_with_tokens(patch: Patch) -> None:
    def begin(bucket: Bucket, quota: Quota, empty_at_ms: int) -> None:
        original(bucket, quota, empty_at_ms)
        bucket._level = bucket._burst * NANO

    original = Bucket.__init__
    patch.setattr(Bucket, "__init__", begin)


@mutant
def a_token_returns_after_the_next_question(patch: Patch) -> None:
    """The coordinator counts it as spent by then."""

    def give_back(key: ThrottleKey[Any, Any], moment: int, now_ms: int) -> bool:
        key.allowance._spent += 1
        return key.allowance.give_back(now_ms)

    patch.setattr(ThrottleKey, "give_back", give_back)


@mutant
def keys_are_asked_for_in_any_order(patch: Patch) -> None:
    """Two hosts hold a token of one key each, wait for the other one, and do not return theirs. (Where they do, items
    pass in any order.)"""

    def resolve(self: Throttling, flow: Any) -> Rules:
        rules = original(self, flow)
        if vars(self).setdefault("reversed", self._random() < 0.5):
            flow.rules = rules = rules._replace(keys=rules.keys[::-1])
        return rules

    original = Throttling._resolve
    patch.setattr(Throttling, "_resolve", resolve)
    patch.setattr(ThrottleKey, "unneeded", lambda key, now_ms: False)


@mutant
def no_flow_keeps_a_token_for_the_next_one(patch: Patch) -> None:
    patch.setattr(ThrottleKey, "keep", lambda *about: False)


@mutant
def a_coordinator_goes_on_with_the_replaced_rate(patch: Patch) -> None:
    patch.setattr(NamespaceTokens, "follow", lambda tokens, quota, now_ms: None)


@mutant
def a_host_goes_on_with_the_replaced_throttles(patch: Patch) -> None:
    patch.setattr(Throttling, "changed", lambda self, ns: None)


@mutant
def tokens_that_a_host_does_not_report_are_granted_again(patch: Patch) -> None:
    """It may not have had the answer yet, or have spent them."""

    def report(bucket: Bucket, holder: str, ask: Ask, now_ms: int) -> bool:
        bucket.advance(now_ms)
        out = bucket.out
        kept = original(bucket, holder, ask, now_ms)
        bucket._level = bucket._capped(bucket._level + max(0, out - bucket.out) * NANO)
        return kept

    original = Bucket.report
    patch.setattr(Bucket, "report", report)


NAMES = [name for name, patch in MUTANTS.items() if patch.__module__ == __name__]
