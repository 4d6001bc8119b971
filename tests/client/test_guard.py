"""What protects threads from objects of their user, and lets an interrupt of the main thread through."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foqs.client.guard import SafeLog, guarded, is_a, kind_of, run_to_end, text_of
from foqs.client.worker import Worker
from tests.client.peer import LATER


def in_thread(call: Callable[[], Any]) -> Any:
    """Return what `call` returns in another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join(LATER)
    return results[0]


def exits() -> None:
    raise SystemExit(3)


def fails() -> None:
    raise OSError("broken")


@pytest.mark.memory
def test_a_callback_that_fails_is_logged(caplog: Any) -> None:
    assert guarded("the callback", fails) is None
    assert guarded("the callback", lambda: 5) == 5
    assert [record.getMessage() for record in caplog.records] == ["the callback failed"]


def test_an_interrupt_goes_through_in_the_main_thread_alone(caplog: Any) -> None:
    with pytest.raises(SystemExit):
        guarded("the callback", exits)
    assert in_thread(lambda: guarded("the callback", exits)) is None
    assert "the callback failed" in caplog.text


@pytest.mark.memory
def test_the_end_of_a_thread_is_reported() -> None:
    ended: list[BaseException] = []
    for work in (fails, exits, lambda: None):
        run_to_end(ended.append, work)
    assert list(map(type, ended)) == [OSError, SystemExit]


class Odd(logging.Handler):
    """Refuses lines with a traceback, or all lines."""

    def __init__(self, *, every: bool) -> None:
        super().__init__()
        self.every = every
        self.lines: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:
        if self.every or record.exc_info:
            raise OSError("no")
        self.lines.append(record.getMessage())
        return True


@pytest.mark.memory
@pytest.mark.parametrize("every", [False, True])
def test_a_line_is_written_without_its_traceback_or_to_stderr(every: bool, capsys: Any) -> None:
    odd = Odd(every=every)
    logger = logging.getLogger("foqs.client")
    logger.addHandler(odd)
    try:
        SafeLog().error("work on %s failed", 5, exc_info=ValueError())
    finally:
        logger.removeHandler(odd)
    line = "work on 5 failed (ValueError; its traceback cannot be logged: OSError)"
    assert odd.lines == ([] if every else [line])
    # Another test of the process may have set up a log on stderr.
    assert (f"foqs.client: {line} (logging failed: OSError)\n" in capsys.readouterr().err) is every


@pytest.mark.memory
def test_a_line_names_the_place_of_its_call(caplog: Any) -> None:
    SafeLog().warning("here")
    assert caplog.records[0].filename == "test_guard.py"


@pytest.mark.memory
def test_types_are_read_past_their_metaclasses() -> None:
    class Loud(type):
        __name__ = property(lambda cls: 1 / 0)  # type: ignore[assignment]

        def __instancecheck__(cls, thing: object) -> bool:
            raise OSError

    class Silent(ValueError, metaclass=Loud):
        def __str__(self) -> str:
            raise OSError

    assert kind_of(Silent()) == "Silent"
    assert text_of(Silent()) == "its text cannot be built: OSError"
    assert is_a(Silent(), ValueError) and not is_a(Silent(), OSError)


def test_a_worker_names_the_thread_that_ended_it(peer: Any, client_of: Any, caplog: Any) -> None:
    worker = Worker(client_of(peer), "t", lambda item: None, wait_ms=20)
    worker.start()
    worker._fail(MemoryError("full"))
    with pytest.raises(MemoryError):
        worker.join(LATER * 1000)
    assert "the worker ends: MemoryError in MainThread" in caplog.text
