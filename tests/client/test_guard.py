"""What protects threads from objects of their user: exceptions, logs, and work that was returned instead of done."""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from foqs.client import Backoff, Client, Invalid, ItemSpec, Producer, Worker
from foqs.client.guard import NotRun, SafeLog, call_to_end, check_returned, guarded, is_a, kind_of, run_to_end, text_of
from tests.client.peer import LATER, eventually, refused, script


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


async def work():
    pass


async def work_items():
    yield 1


def generate():
    yield 1


@types.coroutine
def old_work():
    yield


class AsyncIterable:
    def __aiter__(self):
        return work_items()


class AsyncIterator:
    async def __anext__(self):
        return 1


class Generator(collections.abc.Generator):
    def send(self, value):
        return value

    def throw(self, *error):
        raise StopIteration


class OtherFuture:
    def add_done_callback(self, callback):
        pass


class Awaitable:
    def __await__(self):
        yield


UNDONE = {
    "a coroutine": (work, "an awaitable"),
    "a coroutine of a generator": (old_work, "an awaitable"),
    "an object to await": (Awaitable, "an awaitable"),
    "a generator": (generate, "a generator"),
    "an object like a generator": (Generator, "a generator"),
    "an async generator": (work_items, "an asynchronous iterator"),
    "an async iterator": (AsyncIterator, "an asynchronous iterator"),
    "an async iterable": (AsyncIterable, "an asynchronous iterator"),
    "a map": (lambda: map(print, [1]), "a lazy iterator"),
    "a filter": (lambda: filter(print, [1]), "a lazy iterator"),
    "a chain": (lambda: itertools.chain([1]), "a lazy iterator"),
    "a function": (lambda: generate, "a callable"),
    "a bound method": (lambda: [].append, "a callable"),
    "a partial": (lambda: functools.partial(print, 1), "a callable"),
    "a context manager": (contextlib.contextmanager(generate), "a callable"),
    "a class": (lambda: AsyncIterator, "a callable"),
    "a Future": (concurrent.futures.Future, "unfinished work"),
    "a Future of another library": (OtherFuture, "unfinished work"),
    "a thread": (lambda: threading.Thread(target=print), "a thread or process that was not started"),
}


def deep_inside(work):
    return {"a": [("b", {"c": work}.items())]}


@pytest.mark.parametrize("inside", [lambda w: w, lambda w: [1, w], lambda w: ("a", w), lambda w: {"a": w}, deep_inside])
@pytest.mark.parametrize("name", UNDONE)
def test_work_is_refused(name, inside):
    make, kind = UNDONE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotRun, match=f"the handler returned {kind}") as raised:
            check_returned(inside(make()))
    assert "the Worker did not run it" in str(raised.value) or "the Worker does not wait for it" in str(raised.value)


@pytest.mark.parametrize(
    "result",
    [
        None, 0, 1.5, "text", b"bytes", True, [1, "a"], (), {"a": {"b": 1}}, {1}, collections.Counter("a"), range(3),
        object(), iter([1]), [None, object()], ValueError("a"), subprocess.CompletedProcess([], 0),
    ],
)  # fmt: skip
def test_a_result_is_accepted(result):
    check_returned(result)


def test_a_list_that_holds_itself_is_accepted():
    result = [1]
    result.append(result)
    check_returned(result)


@pytest.mark.threads
def test_a_thread_that_has_ended_is_a_result():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    with pytest.raises(NotRun, match="unfinished work"):
        check_returned(thread)
    check_returned(thread, elsewhere=True)
    go.set()
    thread.join()
    check_returned(thread)


@pytest.mark.process
def test_a_process_that_has_ended_is_a_result():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(NotRun, match="unfinished work"):
            check_returned(process)
        check_returned(process, elsewhere=True)
    check_returned(process)


@pytest.mark.threads
def test_a_result_of_a_pool_is_work_of_another_thread():
    with ThreadPool(1) as pool, pytest.raises(NotRun, match="unfinished work"):
        check_returned(pool.apply_async(int))


def test_a_future_that_was_not_begun_is_cancelled():
    future = concurrent.futures.Future()
    with pytest.raises(NotRun):
        check_returned([future])
    assert future.cancelled()
    kept = concurrent.futures.Future()
    check_returned(kept, elsewhere=True)
    assert not kept.cancelled()


def test_a_task_is_cancelled_in_its_loop():
    begun = []

    async def late():
        begun.append(1)

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(late())
        with pytest.raises(NotRun, match="unfinished work"):
            check_returned(task)
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        assert task.cancelled() or begun
    finally:
        loop.close()


def test_a_callback_that_returns_its_work_is_an_error():
    with pytest.raises(NotRun, match="on_error returned an awaitable"):
        call_to_end("on_error", work)
    call_to_end("on_error", concurrent.futures.Future)


@pytest.mark.parametrize("callback", [work, generate, work_items, functools.partial(work)])
@pytest.mark.parametrize("name", ["on_error", "on_retry"])
def test_a_callback_that_would_not_run_is_refused(peer, client_of, name, callback):
    with pytest.raises(Invalid, match=f"{name} is a (coroutine|generator) function"):
        if name == "on_retry":
            Client(on_retry=callback)
        else:
            Producer(client_of(peer), on_error=callback)


@pytest.mark.threads
def test_callbacks_that_return_coroutines_are_reported(new_peer, client_of, caplog):
    client = client_of(new_peer(script("Enqueue", refused(4))), on_retry=lambda *_: work())
    with Producer(client) as producer:
        future = producer.enqueue("t", b"x")
        future.add_done_callback(lambda _: work())
    lines = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert [line.partition(" returned ")[0] for line in lines] == ["on_retry", "a callback of an item's future"]


@pytest.mark.threads
@pytest.mark.parametrize("name", ["a Future", "a partial", "an async iterator"])
def test_the_item_of_a_handler_that_returned_its_work_is_nacked(peer, client_of, name):
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")])
    handler = lambda item: UNDONE[name][0]()  # noqa: E731
    with Worker(client, "t", handler, wait_ms=50, backoff=Backoff(first_ms=3_600_000)) as worker:
        eventually(lambda: worker.counts.failed == 1)
    assert [nack.reason for nack in peer.nacked] == ["NotRun"]
    assert peer.acked == []


@pytest.mark.threads
def test_a_manual_handler_may_end_its_job_in_another_thread(peer, client_of):
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")])
    returned = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def handle(item, job):
            try:
                return pool.submit(lambda: returned.wait() and job.ack())
            finally:
                returned.set()

        with Worker(client, "t", handle, wait_ms=50, ack_policy="manual") as worker:
            eventually(lambda: len(peer.acked) == 1)
    assert worker.counts.failed == 0
