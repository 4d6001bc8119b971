"""A host that reports late when its tokens were spent loses nothing of the rate, and gains nothing."""

from __future__ import annotations

from itertools import count

from foqs.bounds import Quota
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Ask, Grant, ThrottleTokens


def test_a_late_report_of_spent_tokens_costs_nothing_of_the_rate() -> None:
    """The bucket was full but for the token that was spent: the next one is made a second after that, for one host."""
    home, second = ThrottleTokens(Quota(1, 1, None), 0), 1_000
    assert home.lend("a", Ask(1, 1, 0, 0), 10_000).granted == 1
    assert home.lend("b", Ask(1, 1, 0, 0), 10_900) == (0, True, second)
    assert home.lend("a", Ask(2, 1, 0, 0, spent_ago_ms=900), 10_900) == (0, True, 100)
    assert home.lend("b", Ask(2, 1, 0, 0), 11_000).granted == 1
    assert home.lend("a", Ask(3, 1, 0, 0, spent_ago_ms=1_000), 11_000) == (0, True, second)


def test_a_report_makes_up_no_more_than_the_tokens_spent() -> None:
    home = ThrottleTokens(Quota(100, 100, None), 0)
    assert home.lend("a", Ask(1, 50, 0, 0), 10_000).granted == 50
    assert home.lend("b", Ask(1, 100, 0, 0), 10_500).granted == 50
    assert home.lend("a", Ask(2, 100, 40, 0, spent_ago_ms=400), 10_500).granted == 10
    assert home.lend("a", Ask(3, 100, 0, 0, spent_ago_ms=400), 10_500).granted == 0  # this time is used up


def test_room_that_one_host_made_late_is_not_made_up_for_another() -> None:
    home = ThrottleTokens(Quota(2, 2, None), 0)
    for holder in "ab":
        assert home.lend(holder, Ask(1, 1, 0, 0), 10_000).granted == 1
    assert home.lend("a", Ask(2, 0, 0, 0), 11_000).kept
    assert home.lend("b", Ask(2, 2, 0, 0, spent_ago_ms=1_000), 11_000).granted == 1


def test_a_new_rate_makes_up_nothing_of_the_time_before() -> None:
    home = ThrottleTokens(Quota(1, 1, None), 0)
    assert home.lend("a", Ask(1, 1, 0, 0), 10_000).granted == 1
    home.follow(Quota(10, 1, None), 10_900)
    assert home.lend("a", Ask(2, 1, 0, 0, spent_ago_ms=900), 10_900).granted == 0


def test_an_allowance_says_how_long_ago_its_tokens_were_spent() -> None:
    allowance = Allowance(0, count(1))
    allowance.answered(allowance.ask(3, 0, ahead=False).number, Grant(3, True, 0), 0)
    assert allowance.spend(10) and allowance.spend(20)
    assert allowance.ask(0, 50, ahead=False) == Ask(2, 0, 1, 0, 29)
    assert allowance.ask(0, 60, ahead=False).spent_ago_ms == 0  # nothing was spent since
