"""The tokens that a host holds: order of charges, answers that cover some of them, and the hints of refusals."""

from itertools import count

import pytest

from foqs.bounds import Quota
from foqs.errors import Overloaded
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import TTL_MS, Ask, Grant
from foqs.peers.quota_client import RETRY_MS, Charge, QuotaAccount

pytestmark = pytest.mark.memory

QUOTA = Quota(per_second=10, burst=10, stored_items=None)


class Rig:
    """An account, and the answers of its charges in order: (name, admitted items, hint of the refusal)."""

    def __init__(self) -> None:
        self.account = QuotaAccount(("ns", ""), QUOTA, Allowance(0, count(1)))
        self.served: list[tuple[str, int, int | None]] = []

    def charge(self, name: str, items: int) -> Charge:
        def admit(got: int, error: Overloaded | None) -> None:
            self.served.append((name, got, error and error.retry_after_ms))

        return Charge(items, admit)

    def waits(self, name: str, items: int) -> Charge:
        charge = self.charge(name, items)
        self.account.waiting.append(charge)
        return charge

    def ask(self, now_ms: int = 0) -> Ask:
        return self.account.ask(now_ms, ahead=False)

    def hold(self, tokens: int, now_ms: int = 0) -> None:
        """Be granted tokens that no charge asked for."""
        self.account.answered(self.ask(now_ms), Grant(tokens, True, 0), now_ms)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_question_covers_all_that_wait(rig: Rig) -> None:
    rig.hold(1)
    rig.waits("a", 2)
    rig.waits("b", 3)
    rig.waits("gone", 9).end(0, None)
    ask = rig.ask()
    assert (ask.wanted, ask.held, ask.back) == (4, 1, 0)


def test_charges_are_served_in_the_order_of_arrival(rig: Rig) -> None:
    rig.waits("a", 2)
    rig.waits("b", 3)
    assert not rig.account.answered(rig.ask(), Grant(4, True, 700), 0)
    assert rig.served == [("a", 2, None), ("b", 2, 700)]
    assert not rig.account.waiting


def test_a_charge_after_the_question_needs_another(rig: Rig) -> None:
    rig.waits("a", 2)
    ask = rig.ask()
    rig.waits("late", 1)
    assert rig.account.answered(ask, Grant(2, True, 0), 0)
    assert rig.served == [("a", 2, None)]
    assert rig.ask().wanted == 1


def test_a_charge_beyond_the_answer_is_refused(rig: Rig) -> None:
    rig.waits("a", 2)
    ask = rig.ask()
    rig.waits("late", 1)
    assert not rig.account.answered(ask, Grant(0, True, 600), 0)
    assert rig.served == [("a", 0, 600), ("late", 0, 600)]


def test_no_answer_refuses_the_charges_that_waited_for_it(rig: Rig) -> None:
    rig.waits("a", 1)
    assert not rig.account.answered(rig.ask(), None, 50)
    assert rig.served == [("a", 0, RETRY_MS)]


def test_tokens_held_are_spent_when_no_answer_arrives(rig: Rig) -> None:
    rig.hold(2)
    rig.waits("a", 3)
    rig.account.answered(rig.ask(), None, 0)
    assert rig.served == [("a", 2, RETRY_MS)]


def test_an_answer_to_an_earlier_question_changes_nothing(rig: Rig) -> None:
    rig.waits("a", 1)
    early = rig.ask()
    late = rig.ask()
    assert not rig.account.answered(early, Grant(5, True, 0), 0)
    assert rig.served == []
    rig.account.answered(late, Grant(1, True, 0), 0)
    assert rig.served == [("a", 1, None)]


def test_a_hint_is_the_time_of_the_lacking_tokens(rig: Rig) -> None:
    """Ten tokens a second: three lack, which accrue in 300 ms."""
    rig.hold(1)
    rig.account.serve(rig.charge("a", 4), 0)
    assert rig.served == [("a", 1, 300)]


def test_a_longer_hint_of_the_coordinator_counts_until_it_ends(rig: Rig) -> None:
    rig.waits("a", 1)
    rig.account.answered(rig.ask(), Grant(0, True, 900), 100)
    rig.account.serve(rig.charge("b", 1), 400)
    rig.account.serve(rig.charge("c", 1), 950)
    assert rig.served == [("a", 0, 900), ("b", 0, 600), ("c", 0, 100)]


def test_a_hint_that_the_rate_explains_is_not_kept(rig: Rig) -> None:
    rig.waits("a", 2)
    rig.account.answered(rig.ask(), Grant(0, True, 200), 0)
    rig.account.serve(rig.charge("b", 1), 0)
    assert rig.served == [("a", 0, 200), ("b", 0, 100)]


def test_a_charge_is_served_at_once_or_waits(rig: Rig) -> None:
    assert not rig.account.can_serve(1, 0)
    rig.hold(2)
    assert rig.account.can_serve(2, 0)
    assert not rig.account.can_serve(3, 0)
    rig.waits("a", 1)
    assert not rig.account.can_serve(1, 0), "first come, first served"


def test_a_charge_is_refused_at_once_when_there_was_no_more(rig: Rig) -> None:
    rig.waits("a", 1)
    rig.account.answered(rig.ask(), Grant(0, True, 1_000), 0)
    assert rig.account.can_serve(1, 0)
    assert not rig.account.can_serve(1, 20), "the pause has ended: the account asks again"


def test_tokens_end_by_the_time_of_the_question(rig: Rig) -> None:
    """The coordinator counts from the arrival of the question, which is later."""
    rig.waits("a", 0)
    ask = rig.ask(100)
    rig.account.answered(ask, Grant(3, True, 0), 400)
    rig.account.serve(rig.charge("in time", 1), 100 + TTL_MS - 1)
    rig.account.serve(rig.charge("late", 1), 100 + TTL_MS)
    assert [one[:2] for one in rig.served[1:]] == [("in time", 1), ("late", 0)]


def test_tokens_that_ran_out_serve_no_charge_at_once(rig: Rig) -> None:
    """The charge waits for the coordinator, which may grant new tokens."""
    rig.hold(5)
    assert rig.account.can_serve(5, TTL_MS - 1)
    assert not rig.account.can_serve(1, TTL_MS)


def test_tokens_that_the_coordinator_does_not_know_are_void(rig: Rig) -> None:
    rig.hold(5)
    rig.waits("a", 7)
    rig.account.answered(rig.ask(), Grant(1, False, 100), 0)
    assert [one[:2] for one in rig.served] == [("a", 1)]


def test_a_charge_is_answered_once(rig: Rig) -> None:
    charge = rig.waits("a", 1)
    ask = rig.ask()
    charge.timed_out({})
    charge.timed_out({})
    rig.account.answered(ask, Grant(1, True, 0), 0)
    assert rig.served == [("a", 0, RETRY_MS)]
    assert rig.account.allowance.balance == 1, "its token is there for the next charge"


def test_an_account_is_unused_without_tokens_and_charges(rig: Rig) -> None:
    assert rig.account.unused
    rig.waits("a", 1)
    assert not rig.account.unused
    rig.account.answered(rig.ask(), Grant(1, True, 0), 0)
    assert not rig.account.unused, "the item may yet be refused"
    rig.account.allowance.settle(1, 0, rig.account.allowance.term, 0)
    assert rig.account.unused
