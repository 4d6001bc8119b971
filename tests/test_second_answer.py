"""Every row of the table of answers, written out a second time."""

import pytest

from foqs import second_answer
from foqs.client.call import ClientClosed
from foqs.errors import (
    FoqsError,
    Forbidden,
    Invalid,
    LostReply,
    NotFound,
    NotSent,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unauthenticated,
    Unavailable,
    from_code,
)
from foqs.second_answer import (
    Duplicate,
    OwnDuplicate,
    Policy,
    Verdict,
    judge,
    judge_forwarded,
    last_word,
    stored,
    unknown,
)

# One letter for each of BUSY, LOST, NOT_FOUND, STALE_LEASE, REFUSED: Again, again in Doubt, Ok (done), Failed, Unknown.
LETTERS = dict(zip("ADOFU", Verdict, strict=True))
ROWS = {
    "ONCE": ("AFFFF", "UFUUU"),
    "KEYED": ("ADFFF", "ADFFU"),
    "LOOK": ("AAFFF", "AAFFF"),
    "END_ITEM": ("ADFFF", "ADOFU"),
    "FORWARDED_ACK": ("ADFFF", "ADUFU"),
    "EXTEND": ("ADFFF", "ADFFU"),
    "CHANGE": ("ADFFF", "ADFFU"),
    "NACK": ("ADFFF", "ADUUU"),
    "GIVE": ("ADFFF", "ADUUU"),
    "RELEASE": ("ADFFF", "ADOOU"),
}
ANSWERS: list[list[FoqsError]] = [
    [Overloaded("x"), Unavailable("x"), NotServed(), NotSent("x")],
    [OutcomeUnknown("x"), LostReply("x")],
    [NotFound("x")],
    [StaleLease("x")],
    [Invalid("x"), Forbidden("x"), Unauthenticated("x"), ClientClosed("x"), from_code(99, "of a newer version")],
]


def policy_of(name: str) -> Policy:
    found: Policy = getattr(second_answer, name)
    return found


def test_the_table_has_no_other_rows() -> None:
    assert ROWS.keys() == {name for name, value in vars(second_answer).items() if isinstance(value, Policy)}


@pytest.mark.parametrize("doubtful", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("name", ROWS)
def test_every_row(name: str, doubtful: bool) -> None:
    for letter, errors in zip(ROWS[name][doubtful], ANSWERS, strict=True):
        for error in errors:
            assert judge(policy_of(name), error, doubtful) is LETTERS[letter], (name, error)


@pytest.mark.parametrize("name", ROWS)
def test_a_plain_enqueue_alone_is_not_repeatable(name: str) -> None:
    assert policy_of(name).repeatable is (name != "ONCE")


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"ONCE"}))
def test_a_forwarding_host_passes_a_refusal_on(name: str) -> None:
    """The client repeats the request; the host repeats it only if an earlier request is in doubt."""
    policy = policy_of(name)
    for error in (Overloaded("full", 100), Unavailable("down", 100)):
        assert judge_forwarded(policy, error, doubtful=False) is Verdict.FAILED
        assert judge_forwarded(policy, error, doubtful=True) is Verdict.AGAIN


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"LOOK"}))
def test_a_forwarding_host_does_not_wait_for_a_silent_database(name: str, doubtful: bool) -> None:
    """Its owner says so by `retry_after_ms`. Without it, the next owner may know the outcome."""
    silent, lost = OutcomeUnknown("the database does not answer", 200), OutcomeUnknown("the shard was lost")
    assert judge_forwarded(policy_of(name), silent, doubtful) is Verdict.FAILED
    if name != "ONCE":
        assert judge_forwarded(policy_of(name), lost, doubtful) is Verdict.AGAIN_DOUBTFUL


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"ONCE"}))
def test_a_forwarding_host_repeats_what_no_owner_took(name: str, doubtful: bool) -> None:
    for error in (NotServed(), NotSent("x")):
        assert judge_forwarded(policy_of(name), error, doubtful) is Verdict.AGAIN
    again = (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL)
    assert judge_forwarded(policy_of(name), LostReply("x"), doubtful) in again


def test_the_last_word_when_time_is_over() -> None:
    look, end_item, once = policy_of("LOOK"), policy_of("END_ITEM"), policy_of("ONCE")
    assert isinstance(last_word(look, LostReply("x"), doubtful=True), Unavailable)
    assert isinstance(last_word(end_item, Unavailable("x"), doubtful=True), OutcomeUnknown)
    assert type(last_word(once, Overloaded("x"), doubtful=False)) is Overloaded
    assert type(last_word(end_item, LostReply("x"), doubtful=True)) is LostReply


def test_an_unknown_outcome_names_its_cause() -> None:
    error = NotFound("gone")
    error.request_id = "abc"
    made = unknown(error)
    assert (made.message, made.__cause__) == ("an earlier reply was lost; then: gone", error)
    assert made.request_id == "abc"


def test_a_duplicate_in_doubt_may_be_the_items_own() -> None:
    assert type(stored(Duplicate(7), doubtful=True)) is OwnDuplicate
    assert type(stored(Duplicate(7), doubtful=False)) is Duplicate
    assert type(stored(7, doubtful=True)) is int
