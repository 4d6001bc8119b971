"""Signals that ask a process to end, and the handlers before."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from foqs.client.worker import stop_signals

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.memory
def test_the_handlers_before_return() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with stop_signals() as caught:
        for number in NUMBERS:
            signal.raise_signal(number)
        assert [caught.get_nowait() for _ in NUMBERS] == list(NUMBERS)
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.memory
def test_the_default_replaces_a_handler_of_c_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with an embedded Python may have one. An error after a fork would leave all else as in the parent."""
    set_handler = signal.signal

    def of_c_code(number: Any, handler: Any) -> None:
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", of_c_code)
    with stop_signals():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == [signal.SIG_DFL] * 2
