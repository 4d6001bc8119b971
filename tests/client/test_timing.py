"""When a batch is due, and how long a client waits before it tries again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import (
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    wait_chain,
    wait_exception,
    wait_exponential,
    wait_fixed,
    wait_none,
)

from foqs.client import Backoff
from foqs.client.timing import REQUEST_AGAIN, Batcher, Strategies, pause_ms
from foqs.errors import Overloaded


@given(
    sizes=st.lists(st.integers(0, 50), max_size=60),
    max_items=st.integers(1, 10),
    max_bytes=st.integers(1, 100),
)
def test_batches_keep_the_order_and_the_bounds(sizes, max_items, max_bytes):
    gather: Batcher[int] = Batcher(max_items, max_bytes, linger_ms=5)
    for number, size in enumerate(sizes):
        gather.add(number, size, now_ms=0)
    seen: list[int] = []
    while batch := gather.take():
        assert len(batch) <= max_items
        assert len(batch) == 1 or sum(sizes[n] for n in batch) <= max_bytes
        seen += batch
        assert gather.first == len(seen)
        assert gather.bytes == sum(sizes[len(seen) :])
    assert seen == list(range(len(sizes)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(2, 40), st.integers(2, 200))
def test_it_is_due_when_full_or_when_the_oldest_lingered(sizes, max_items, max_bytes):
    gather: Batcher[int] = Batcher(max_items, max_bytes, linger_ms=5)
    assert gather.due_at_ms() is None
    for number, size in enumerate(sizes):
        gather.add(number, size, now_ms=100 + number)
    full = len(sizes) >= max_items or sum(sizes) >= max_bytes
    assert gather.due_at_ms() == (0 if full else 105)


def test_a_hurried_item_is_due_at_once_and_later_ones_linger():
    gather: Batcher[str] = Batcher(2, 1000, linger_ms=50)
    for name in "abc":
        gather.add(name, 1, now_ms=10)
    assert gather.deliver_now() == 3
    assert gather.take() == ["a", "b"]
    gather.add("d", 1, now_ms=20)
    assert gather.due_at_ms() == 0
    assert gather.take() == ["c", "d"]
    gather.add("e", 1, now_ms=30)
    assert gather.due_at_ms() == 80


@given(
    st.builds(
        Backoff,
        first_ms=st.integers(1, 10_000),
        factor=st.floats(1, 10),
        longest_ms=st.integers(1, 1_000_000),
        jitter=st.floats(0, 1),
    ),
    st.integers(0, 100_000),
    st.floats(0, 1, exclude_max=True),
)
def test_it_grows_to_its_cap_and_jitter_only_shortens(backoff, attempt, random):
    delay = backoff.delay_ms(attempt, lambda: random)
    whole = backoff.delay_ms(attempt, lambda: 0.0)
    assert 0 <= delay <= whole <= backoff.longest_ms
    assert delay >= int(whole * (1 - backoff.jitter)) - 1
    assert backoff.delay_ms(attempt + 1, lambda: 0.0) >= whole


def test_doubling():
    backoff = Backoff(first_ms=100, longest_ms=1_000, jitter=0)
    assert [backoff.delay_ms(n, lambda: 0.0) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_bounded(tries, random):
    pause = pause_ms(tries, None, lambda: random)
    assert 0 < pause <= REQUEST_AGAIN.longest_ms
    assert pause_ms(tries + 1, None, lambda: random) >= pause


@given(st.integers(1, 10_000), st.integers(1, 10_000_000), st.floats(0, 1, exclude_max=True))
def test_the_servers_wish_is_a_lower_bound_with_jitter(tries, hint_ms, random):
    assert hint_ms <= pause_ms(tries, hint_ms, lambda: random) <= hint_ms * 1.5


def pause_s(wait: Any, stop: Any, hint_ms: int | None = None, tries: int = 1, now_s: float = 0.0) -> float | None:
    return Strategies(wait, stop).pause_s(tries, Overloaded("full"), hint_ms, 0.0, now_s, lambda: 0.0)


def test_without_strategies_the_pauses_are_the_clients_own() -> None:
    assert [pause_s(None, None, tries=tries) for tries in (1, 2, 3)] == [0.02, 0.04, 0.08]
    assert pause_s(None, stop_never, tries=2) == 0.04


def test_a_wait_strategy_gives_the_pause() -> None:
    assert [pause_s(wait_exponential(max=5), None, tries=tries) for tries in (1, 2, 3, 4)] == [1, 2, 4, 5]
    assert pause_s(wait_chain(wait_fixed(3), wait_fixed(7)), None, tries=2) == 7


def test_the_hint_of_the_server_is_a_lower_bound_of_a_strategy() -> None:
    assert pause_s(wait_none(), None, hint_ms=1_500) == 1.5
    assert pause_s(wait_fixed(2), None, hint_ms=1_500) == 2


def test_a_stop_strategy_knows_tries_time_and_pause() -> None:
    assert pause_s(None, stop_after_attempt(3), tries=2) is not None
    assert pause_s(None, stop_after_attempt(3), tries=3) is None
    assert pause_s(None, stop_after_delay(5), now_s=4.9) is not None
    assert pause_s(None, stop_after_delay(5), now_s=5.0) is None
    assert pause_s(wait_fixed(2), stop_before_delay(5), now_s=2.9) == 2
    assert pause_s(wait_fixed(2), stop_before_delay(5), now_s=3.0) is None


def test_a_strategy_knows_the_error() -> None:
    patient = wait_exception(lambda error: 9.0 if isinstance(error, Overloaded) else 0.0)
    assert pause_s(patient, None) == 9.0


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_wait_that_is_none_does_not_count(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert pause_s(lambda _: wrong, None) == 0.02
    assert "retry_wait of the client failed" in caplog.text


def test_a_strategy_that_fails_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Any) -> Any:
        raise OSError("no clock")

    assert pause_s(fails, fails) == 0.02
    assert caplog.text.count(" of the client failed") == 2
