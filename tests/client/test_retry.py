"""What may be asked again: the table of decisions, as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client.connection import ClientClosed, LostReply, NotSent
from foqs.client.retry import (
    END_ITEM,
    EXTEND,
    KEYED,
    LONGEST_PAUSE_MS,
    LOOK,
    NACK,
    ONCE,
    RELEASE,
    Verdict,
    judge,
    last_word,
    pause_ms,
)
from foqs.errors import (
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unauthenticated,
    Unavailable,
    from_code,
)

POLICIES = (ONCE, LOOK, END_ITEM, EXTEND, NACK, RELEASE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("error", [Overloaded("x"), Unavailable("x"), NotSent("x")])
def test_what_changed_nothing_is_always_asked_again(policy, error):
    assert judge(policy, error, doubtful=False) is Verdict.AGAIN


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "error", [Invalid("x"), Forbidden("x"), Unauthenticated("x"), ClientClosed("x"), NotFound("x"), StaleLease("x")]
)
def test_what_was_refused_is_never_asked_again(policy, error):
    assert judge(policy, error, doubtful=False) is Verdict.FAILED


@pytest.mark.parametrize("error", [LostReply("x"), OutcomeUnknown("x")])
def test_an_enqueue_is_never_repeated_when_nobody_knows(error):
    assert judge(ONCE, error, doubtful=False) is Verdict.FAILED
    for policy in (LOOK, END_ITEM, EXTEND, NACK, RELEASE):
        assert judge(policy, error, doubtful=False) is Verdict.AGAIN_DOUBTFUL


@pytest.mark.parametrize(
    ("policy", "not_found", "stale"),
    [
        (END_ITEM, Verdict.DONE, Verdict.FAILED),
        (RELEASE, Verdict.DONE, Verdict.DONE),
        (NACK, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (EXTEND, Verdict.FAILED, Verdict.FAILED),
    ],
)
def test_what_an_answer_means_after_a_lost_reply(policy, not_found, stale):
    assert judge(policy, NotFound("x"), doubtful=True) is not_found
    assert judge(policy, StaleLease("x"), doubtful=True) is stale


@pytest.mark.parametrize("policy", [KEYED, END_ITEM, EXTEND, NACK, RELEASE])
@pytest.mark.parametrize(
    "error", [Invalid("x"), Forbidden("x"), Unauthenticated("x"), ClientClosed("x"), from_code(99, "newer than we are")]
)
def test_who_refuses_to_do_it_again_does_not_know_whether_it_was_done(policy, error):
    assert judge(policy, error, doubtful=True) is Verdict.UNKNOWN


def test_the_last_word_when_time_is_over():
    assert isinstance(last_word(LOOK, LostReply("x"), doubtful=True), Unavailable)
    assert isinstance(last_word(END_ITEM, Unavailable("x"), doubtful=True), OutcomeUnknown)
    assert type(last_word(ONCE, Overloaded("x"), doubtful=False)) is Overloaded
    assert type(last_word(END_ITEM, LostReply("x"), doubtful=True)) is LostReply


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_bounded(tries, random):
    pause = pause_ms(tries, None, lambda: random)
    assert 0 < pause <= LONGEST_PAUSE_MS
    assert pause_ms(tries + 1, None, lambda: random) >= pause


@given(st.integers(1, 10_000), st.integers(1, 10_000_000), st.floats(0, 1, exclude_max=True))
def test_the_servers_wish_is_a_lower_bound_with_jitter(tries, hint_ms, random):
    assert hint_ms <= pause_ms(tries, hint_ms, lambda: random) <= hint_ms * 1.5
