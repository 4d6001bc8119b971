"""What the end of an attempt means for an item: a table of policies and ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.engine.item_ops import AGAIN, DEAD, REMOVED, End, Ended, Fate, end_of, may_end
from foqs.hooks.protocol import Action, FailureResult
from foqs.policies.layers import NamespacePolicies
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import FailureCause

FAILED, EXPIRED, REJECTED, HOOK, LIMIT = FailureCause
RULE = {"kind": "constant", "first_ms": 700, "jitter": 0}


def policy_of(topic: str = "mail", **entry: Any) -> TopicPolicy:
    return NamespacePolicies({"topic.mail*": json.dumps(entry)}).of(topic)


def later(delay_ms: int) -> End:
    return End(Fate.AGAIN, delay_ms)


@pytest.mark.parametrize(
    ("policy", "attempt", "ended", "end"),
    [
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(FAILED), later(700)),
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(FAILED, delay_ms=9), later(700)),
        ({"max_attempts": 3, "retry": None}, 2, Ended(FAILED, delay_ms=9), later(9)),
        ({"max_attempts": 3, "retry": None}, 2, Ended(FAILED), AGAIN),
        ({"max_attempts": 3, "retry": RULE}, 3, Ended(FAILED), DEAD),
        ({"max_attempts": 3, "retry": RULE}, 9, Ended(FAILED), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(FAILED), REMOVED),
        ({"max_attempts": 0, "retry": RULE}, 9_999, Ended(FAILED), later(700)),
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(EXPIRED), AGAIN),
        ({"max_attempts": 3, "retry": RULE}, 3, Ended(EXPIRED), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(EXPIRED), REMOVED),
        ({"max_attempts": 0}, 9_999, Ended(EXPIRED), AGAIN),
        ({"max_attempts": 0}, 1, Ended(REJECTED), DEAD),
        ({"dead": None}, 1, Ended(REJECTED), REMOVED),
        ({"max_attempts": 3}, 2, Ended(LIMIT), AGAIN),
        ({"max_attempts": 3}, 3, Ended(LIMIT), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(LIMIT), REMOVED),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(FAILED, age_ms=49), later(700)),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(FAILED, age_ms=50), DEAD),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(EXPIRED, age_ms=50), DEAD),
        ({"max_attempts": 0, "retry": RULE}, 1, Ended(FAILED, age_ms=1 << 50), later(700)),
    ],
)
def test_the_end_of_an_attempt(policy: dict[str, Any], attempt: int, ended: Ended, end: End) -> None:
    assert end_of(policy_of(**policy), 7, attempt, ended) == end


def by_script(cause: FailureCause, action: Action | None = None, delay_ms: int | None = None) -> Ended:
    return Ended(cause, age_ms=40, decision=FailureResult(action, delay_ms))


SCRIPT_DEAD, SCRIPT_REMOVED = End(Fate.DEAD, by_script=True), End(Fate.REMOVED, by_script=True)


@pytest.mark.parametrize(
    ("policy", "attempt", "ended", "end"),
    [
        ({}, 1, by_script(FAILED), later(700)),
        ({}, 1, by_script(FAILED, None, 5), later(5)),
        ({}, 1, by_script(FAILED, Action.RETRY), later(700)),
        ({}, 1, by_script(FAILED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(FAILED, Action.RETRY, 0), AGAIN),
        ({}, 1, by_script(FAILED, Action.DEAD), SCRIPT_DEAD),
        ({}, 1, by_script(FAILED, Action.DROP), SCRIPT_REMOVED),
        ({"dead": None}, 1, by_script(FAILED, Action.DEAD), SCRIPT_REMOVED),
        ({}, 1, by_script(EXPIRED), AGAIN),
        ({}, 1, by_script(EXPIRED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(EXPIRED, Action.DEAD), SCRIPT_DEAD),
        ({}, 1, by_script(EXPIRED, Action.DROP), SCRIPT_REMOVED),
        ({}, 1, by_script(REJECTED), DEAD),
        ({}, 1, by_script(REJECTED, Action.RETRY), later(700)),
        ({}, 1, by_script(REJECTED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(REJECTED, Action.DEAD), SCRIPT_DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.RETRY, 5), DEAD),
        ({"max_attempts": 3}, 3, by_script(REJECTED, Action.RETRY, 5), DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.DEAD), DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.DROP), SCRIPT_REMOVED),
        ({"max_total_ms": 40}, 1, by_script(EXPIRED, Action.RETRY, 5), DEAD),
    ],
)
def test_what_a_script_decides(policy: dict[str, Any], attempt: int, ended: Ended, end: End) -> None:
    """It cannot give more than the policy's attempts and time."""
    assert end_of(policy_of(**({"retry": RULE} | policy)), 7, attempt, ended) == end


@pytest.mark.parametrize(
    ("ended", "end"),
    [(Ended(FAILED), later(700)), (Ended(EXPIRED), AGAIN), (Ended(LIMIT), AGAIN), (Ended(REJECTED), REMOVED)],
)
def test_a_dead_letter_does_not_die_again(ended: Ended, end: End) -> None:
    policy = policy_of("mail.dlq", max_attempts=1, max_total_ms=1, retry=RULE)
    assert end_of(policy, 7, 99, ended._replace(age_ms=99)) == end


@pytest.mark.parametrize(
    ("policy", "attempt", "may"),
    [
        ({"max_attempts": 3}, 2, False),
        ({"max_attempts": 3}, 3, True),
        ({"max_attempts": 0}, 9_999, False),
        ({"max_attempts": 0, "max_total_ms": 1}, 1, True),
        ({"hooks": {"on_failure": "s"}}, 1, True),
        ({"hooks": {"on_enqueue": "s"}}, 1, False),
    ],
)
def test_whether_the_end_of_a_lease_may_be_more(policy: dict[str, Any], attempt: int, may: bool) -> None:
    assert may_end(policy_of(**policy), attempt) is may
