"""A coordinator keeps a token for the host that got none for long."""

from __future__ import annotations

from foqs.bounds import Quota
from foqs.limits.bucket import PATIENCE_MS, Ask, ThrottleTokens

BEGIN_MS = 10_000


class Coordinator:
    """Of a key with 100 tokens a second and a burst of 1. Host `near` asks every 5 ms, and gets a token every 15 ms."""

    def __init__(self) -> None:
        self.tokens = ThrottleTokens(Quota(100, 1, None), 0)
        self.now_ms = BEGIN_MS
        self._numbers = dict.fromkeys(("near", "far", "farther"), 0)

    def ask(self, host: str, wanted: int = 1) -> int:
        self._numbers[host] += 1
        return self.tokens.lend(host, Ask(self._numbers[host], wanted, 0, 0), self.now_ms).granted

    def near_until(self, at_ms: int) -> int:
        """Return how many tokens `near` gets until then."""
        granted = 0
        while self.now_ms < at_ms:
            self.now_ms += 5
            granted += self.ask("near")
        return granted


def test_a_token_is_kept_for_a_host_that_waited_long() -> None:
    home = Coordinator()
    home.near_until(BEGIN_MS + 20)
    assert not home.ask("far")
    assert home.near_until(home.now_ms + PATIENCE_MS) >= 6
    assert not home.ask("far")  # it asked late again
    home.near_until(home.now_ms + 45)
    assert home.ask("far")
    home.ask("far", 0)  # it is spent
    assert home.near_until(home.now_ms + 50) >= 3


def test_a_host_that_asks_no_more_takes_no_token() -> None:
    home = Coordinator()
    home.near_until(BEGIN_MS + 20)
    assert not home.ask("far")
    got = home.near_until(home.now_ms + 10 * PATIENCE_MS)
    assert got >= 64


def test_the_host_that_waited_longest_comes_first() -> None:
    home = Coordinator()
    home.near_until(BEGIN_MS + 20)
    assert not home.ask("far")
    home.now_ms += 1
    assert not home.ask("farther")
    home.near_until(home.now_ms + PATIENCE_MS)
    assert not (home.ask("far") or home.ask("farther"))
    home.near_until(home.now_ms + 40)
    assert not home.ask("farther")
    assert home.ask("far")


def test_a_question_that_wants_nothing_waits_for_nothing() -> None:
    home = Coordinator()
    home.near_until(BEGIN_MS + 20)
    assert not home.ask("far", 0)
    assert home.near_until(home.now_ms + 3 * PATIENCE_MS) >= 20
