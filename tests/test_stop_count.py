"""Which signals count as a wish to stop."""

import signal

import pytest

from foqs.client.signals import stop_signals
from foqs.stop_count import ONE_WISH_S, StopCount


def test_only_a_signal_a_second_later_counts_again() -> None:
    count = StopCount()
    heard = [count.counts(100 + at_s) for at_s in (0.0, 0.2, ONE_WISH_S, ONE_WISH_S + 0.01, ONE_WISH_S + 0.02)]
    assert heard == [True, False, False, True, True]


def test_the_echo_of_a_signal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 5.0
    monkeypatch.setattr("foqs.client.signals.monotonic", lambda: now_s)
    caught: list[int] = []
    with stop_signals(caught.append):
        signal.raise_signal(signal.SIGINT)  # of the terminal
        signal.raise_signal(signal.SIGTERM)  # of a supervisor, in the same process group
        assert caught == [signal.SIGINT]
        now_s += ONE_WISH_S + 0.1
        signal.raise_signal(signal.SIGINT)
    assert caught == [signal.SIGINT, signal.SIGINT]
