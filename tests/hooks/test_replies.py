"""The reply of a process is not trusted: one of a wrong shape is an invalid result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.hooks.call_queues import Waiting
from foqs.hooks.dispatcher import Columns, outcome_of, outcomes_of
from foqs.hooks.frames import FLUSH_CALLS, REPLY_BYTES, framed, text_of
from foqs.hooks.protocol import Answered, EnqueueResult, Failed, FailureResult, Hook, Kind
from tests.hooks.rig import GOOD, call_of

LIMITS = Limits()


def test_replies_become_outcomes() -> None:
    call = call_of(GOOD)
    assert outcome_of(call, [7, 90, {"weight": 4}], LIMITS) == Answered(EnqueueResult(weight=4), 7, 90)
    assert outcome_of(call, [7, 90, "timeout", "late"], LIMITS) == Failed(Kind.TIMEOUT, "late", 7, 90)
    failed = outcome_of(call, [7, 90, {"action": "dead"}], LIMITS)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.elapsed_us, failed.memory_bytes) == (Kind.INVALID, 7, 90)
    on_failure = call_of(GOOD, hook=Hook.ON_FAILURE)
    assert outcome_of(on_failure, [1, 2, {"delay_ms": 5}], LIMITS) == Answered(FailureResult(None, 5), 1, 2)


VALUES = st.sampled_from([4, 4.0, True, 0, None, "a", "", "\ud800", ["b", "a"], ["a", 1], {}, 10**400, 1e300])
NUMBERS = st.sampled_from([7, 0, -1, 7.0, True, "7", 1 << 40])


@given(
    st.lists(st.sampled_from([*EnqueueResult._fields, *FailureResult._fields, "other", 7]), max_size=3),
    st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=4),
    st.one_of(st.just([7]), st.lists(NUMBERS, min_size=1, max_size=4)),
    st.sampled_from(Hook),
)
def test_columns_have_the_outcomes_of_their_replies(
    names: list[Any], rows: list[list[Any]], numbers: list[Any], hook: Hook
) -> None:
    call = call_of("-- throttle_keys\n" + GOOD, hook=hook)
    elapsed_us = [numbers[at % len(numbers)] for at in range(len(rows))]
    columns = [[row[at] for row in rows] for at in range(len(names))]
    outcomes = outcomes_of(
        [Waiting(call, None, at) for at in range(len(rows))],
        Columns(elapsed_us, [90] * len(rows), names, columns),
        LIMITS,
    )
    wrong = [one for one in names if one.__class__ is not str]
    wrong += [one for one in elapsed_us if one.__class__ is not int or not 0 <= one < 1 << 40]
    for row, one_us, outcome in zip(rows, elapsed_us, outcomes, strict=True):
        one = outcome_of(call, [] if wrong else [one_us, 90, dict(zip(names, row, strict=False))], LIMITS)
        assert outcome == one
        assert not isinstance(one, Answered) or list(map(type, outcome.result)) == list(map(type, one.result))


def test_texts_of_a_process_are_cut_and_valid() -> None:
    failed = outcome_of(call_of(GOOD), [1, 2, "error", "\ud800" + "x" * 5_000], LIMITS)
    assert isinstance(failed, Failed)
    assert failed.text == "?" + "x" * 999
    failed = outcome_of(call_of(GOOD), [1, 2, {"refuse": "\ud800"}], LIMITS)
    assert failed == Failed(Kind.INVALID, "the result has a text that is not UTF-8", 1, 2)


def test_the_longest_replies_fit_a_message() -> None:
    replies = [[1, 2, {"refuse": "\1" * 8_192}] for _ in range(FLUSH_CALLS)]
    assert len(framed(text_of(replies))) < REPLY_BYTES


@pytest.mark.parametrize(
    "reply",
    [
        None, 7, "x", {}, [], [1, 2], [1, 2, 3], [1, 2, []], ["1", 2, {}], [1, 2.0, {}], [True, 2, {}], [1, 2, "error"],
        [-1, 2, {}], [1, 10**400, {}], [1, 2, "error", 3], [1, 2, "killed", "x"], [1, 2, "open", "x"],
        [1, 2, ["error"], "x"], [1, 2, "error", "x", 3],
    ],
)  # fmt: skip
def test_a_reply_of_a_wrong_shape_is_invalid(reply: Any) -> None:
    failed = outcome_of(call_of(GOOD), reply, LIMITS)
    assert failed == Failed(Kind.INVALID, "the process of the script sent no result")
