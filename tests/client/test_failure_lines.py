"""What the log says of a failed attempt: its number, what happens to the item, and the exception, on real hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.client import Client, Item, ItemRules, ItemSpec, Reject, Retry, RetryKind, RetryRule, Worker
from foqs.client.ending import sequel_of, shown_ms
from tests.client.peer import LATER, Act, eventually, logged_tracebacks
from tests.client.real_server import on_each_host

SOON = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)
Work = Callable[..., Worker]


@pytest.fixture
def run(client: Client) -> Iterator[Work]:
    """`run(handler)` works on topic t."""
    workers: list[Worker] = []

    def begin(handler: Any, **options: Any) -> Worker:
        workers.append(Worker(client, "t", handler, wait_ms=20, **options))
        workers[-1].start()
        return workers[-1]

    yield begin
    for worker in workers:
        worker.stop(grace_ms=0)
        assert worker.join(LATER * 1000)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The level and the text behind the item, of each line about one."""
    found = [(one.levelname, one.getMessage()) for one in caplog.records if "Item(" in one.getMessage()]
    return [(level, text.partition("): ")[2]) for level, text in found]


def broken(item: Item) -> None:
    raise ValueError("no such user")


@pytest.mark.threads
@on_each_host
def test_each_attempt_is_numbered_and_only_the_last_is_an_error(
    client: Client, run: Work, caplog: pytest.LogCaptureFixture
) -> None:
    client.enqueue("t", b"x", rules=ItemRules(max_attempts=3, retry=SOON))
    run(broken)
    eventually(lambda: len(lines(caplog)) == 3)
    assert lines(caplog) == [
        ("WARNING", "attempt 1 of 3, again in 1 ms"),
        ("WARNING", "attempt 2 of 3, again in 1 ms"),
        ("ERROR", "attempt 3 of 3, it is in the dead-letter topic t.dlq"),
    ]
    assert logged_tracebacks(caplog).count("in broken") == 3
    assert "_attempt" not in logged_tracebacks(caplog), "a traceback begins at the handler"


@pytest.mark.threads
def test_a_failure_without_a_limit_and_one_that_is_rejected(
    client: Client, run: Work, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(item: Item) -> None:
        if item.payload == b"reject":
            raise Reject("100% wrong")
        raise ValueError("no such user")

    client.enqueue("t", b"fail", rules=ItemRules(max_attempts=0, retry=RetryRule(RetryKind.CONSTANT, 60_000, jitter=0)))
    client.enqueue("t", b"reject")
    run(handle)
    eventually(lambda: len(lines(caplog)) == 2)
    assert {level for level, _ in lines(caplog)} == {"WARNING"}
    assert ": attempt 1, again in 60 s" in caplog.text
    assert " with '100% wrong': attempt 1 of 25, it is in the dead-letter topic t.dlq" in caplog.text


@pytest.mark.threads
@pytest.mark.parametrize("how", ["from", "inside", "alone", "from None"])
def test_a_retry_from_an_error_has_that_error_in_the_log(
    client: Client, run: Work, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    def handle(item: Item) -> None:
        again = Retry(delay=timedelta(seconds=8))
        try:
            raise ConnectionError("no database")
        except ConnectionError as error:
            if how == "from":
                raise again from error
            if how == "from None":
                raise again from None
            if how == "inside":
                raise again  # noqa: B904 - as users write it
        raise again

    client.enqueue("t", b"x")
    worker = run(handle)
    eventually(lambda: worker.counts.failed + worker.counts.released == 1)
    if how in ("alone", "from None"):
        assert lines(caplog) == []
        return
    assert lines(caplog) == [("WARNING", "attempt 1, again in 8 s")]
    said = logged_tracebacks(caplog)
    assert said.count("Traceback") == 1
    assert said.splitlines()[1].strip().startswith('File "') and "in handle" in said.splitlines()[1]
    assert "ConnectionError: no database" in said


@pytest.mark.threads
def test_a_host_of_an_older_version_says_nothing_about_the_item(
    peer: Any, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(peer) as client:
        client.enqueue_many([ItemSpec("t", b"x")])
        worker = Worker(client, "t", broken, wait_ms=20)
        worker.start()
        eventually(lambda: lines(caplog))
        worker.stop(grace_ms=0)
        assert worker.join(LATER * 1000)
    assert lines(caplog)[0] == ("ERROR", "attempt 1; again, or a dead letter, as its rules or its topic's policy say")


@pytest.mark.threads
def test_a_failure_is_logged_although_no_host_answers_the_nack(
    peer: Any, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    closing = threading.Event()
    peer.meddle = lambda name, _: Act.CLOSE_BEFORE if name == "Nack" and not closing.is_set() else Act.SERVE
    with client_of(peer) as client:
        client.enqueue_many([ItemSpec("t", b"x")])
        worker = Worker(client, "t", broken, wait_ms=20)
        worker.start()
        eventually(lambda: [level for level, text in lines(caplog) if "attempt 1; again" in text] == ["ERROR"])
        closing.set()
        worker.stop(grace_ms=0)
        assert worker.join(LATER * 1000)


def test_the_words() -> None:
    def after(again_in_ms: int | None, max_attempts: int | None, dead_topic: str | None = None) -> Any:
        return SimpleNamespace(again_in_ms=again_in_ms, max_attempts=max_attempts, dead_topic=dead_topic)

    assert sequel_of(after(8_000, 25), 3) == ("attempt 3 of 25, again in 8 s", True)
    assert sequel_of(after(0, None), 3) == ("attempt 3, again in 0 ms", True)
    assert sequel_of(after(None, 3, "a.dlq"), 3) == ("attempt 3 of 3, it is in the dead-letter topic a.dlq", False)
    assert sequel_of(after(None, 3), 3)[0].endswith("it is not tried again, and its topic has no dead letters")
    assert [shown_ms(ms) for ms in (0, 999, 1_500, 119_000, 120_000, 7_200_000)] == [
        "0 ms", "999 ms", "1.5 s", "119 s", "2 min", "2 h",
    ]  # fmt: skip
