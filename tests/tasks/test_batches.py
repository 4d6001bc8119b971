"""Tasks that take several calls at once: on a real host, and in a plain call."""

import asyncio
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta

import pytest

from foqs import App, Call, Depends, Job, Middleware, Retry
from foqs.client import Invalid, ItemState, RetryKind, RetryRule
from foqs.client.arguments import MOST_HELD
from foqs.tasks.batches import Gathering
from foqs.tasks.handle import TaskFailed
from tests.client.peer import LATER, eventually, logged_tracebacks
from tests.client.real_server import on_each_host

AT_ONCE = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)


def of(*, thread: bool, function):
    """Return the function, or a coroutine function that does its work."""
    if thread:
        return function

    async def coroutine(calls: list[Call]) -> list[int]:
        await asyncio.sleep(0)
        return function(calls)

    return coroutine


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_calls_run_together_each_with_its_result(app, start, thread):
    sizes, at_work = [], []

    def double(calls: list[Call]) -> list[int]:
        at_work.append(threading.get_ident())
        assert len(at_work) == 1, "two batches of one task at a time"
        sizes.append(len(calls))
        at_work.clear()
        return [2 * call.kwargs["n"] for call in calls]

    def one(n: int) -> None: ...

    task = app.task(topic="double", name="double", batch=10, arguments=one)(of(thread=thread, function=double))
    handles = app.enqueue_many([task.message(n) for n in range(100)])
    start(app)
    assert [handle.result(LATER) for handle in handles] == [2 * n for n in range(100)]
    assert max(sizes) == 10
    assert len(sizes) < 50
    assert task.enqueue(7).result(LATER) == 14, "a batch of one begins after batch_wait"


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_a_call_fails_alone(app, start, thread):
    later = [4]

    def odd(calls: list[Call]) -> list[int]:
        for call in calls:
            if call.args[0] % 2:
                call.fail(ValueError(f"{call.args[0]} is odd"))
            if call.args[0] in later:
                later.clear()
                call.fail(Retry(delay=timedelta(0), counts=False))
        return [call.args[0] for call in calls]

    options = {"topic": "odd", "max_attempts": 1, "batch": 6, "batch_wait": LATER}
    task = app.task(name="odd", **options)(of(thread=thread, function=odd))
    handles = [task.enqueue(n) for n in range(6)]
    start(app, report_errors=True)
    for n in (0, 2):
        assert handles[n].result(LATER) == n
    for n in (1, 3, 5):
        with pytest.raises(TaskFailed, match=f"ValueError: {n} is odd"):
            handles[n].result(LATER)
    again = [task.enqueue(0) for _ in range(5)]
    assert handles[4].result(LATER) == 4
    assert [handle.result(LATER) for handle in again] == [0] * 5


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_an_exception_fails_each_call_once(app, start, thread, caplog):
    def broken(calls: list[Call]) -> list[int]:
        raise ConnectionError("no database")

    seen = []

    class Seen(Middleware):
        def failed(self, call, error):
            seen.append((str(error), len(traceback.extract_tb(error.__traceback__))))

    app.middleware.append(Seen())
    options = {"topic": "broken", "max_attempts": 1, "batch": 5, "batch_wait": LATER}
    task = app.task(name="broken", **options)(of(thread=thread, function=broken))
    handles = [task.enqueue(n) for n in range(5)]
    start(app, report_errors=True)
    for handle in handles:
        with pytest.raises(TaskFailed, match="failed after 1 attempt: ConnectionError: no database"):
            handle.result(LATER)
    assert [text for text, _ in seen] == ["no database"] * 5
    assert max(depth for _, depth in seen) < 12, "a traceback grows with each call"
    (entry,) = eventually(lambda: errors(caplog))
    assert logged_tracebacks(caplog).count("in broken") == 1
    assert entry.startswith("the handler failed with Item(")
    assert "and 4 more of its batch (" in entry
    assert all(str(handle.id) in entry for handle in handles)


@pytest.mark.threads
def test_the_log_has_the_exception_of_a_batch_with_a_release(app, start, caplog):
    def broken(calls: list[Call]) -> None:
        if calls[0].job.attempt == 1 and len(calls) == 2:
            calls[0].job.release()
            raise ConnectionError("no database")

    task = app.task(name="broken", topic="broken", max_attempts=1, batch=2, batch_wait=LATER)(broken)
    handles = [task.options(priority=n).enqueue() for n in range(2)]
    start(app, report_errors=True)
    with pytest.raises(TaskFailed, match="no database"):
        handles[1].result(LATER)
    (entry,) = eventually(lambda: errors(caplog))
    assert entry.startswith("the handler failed with Item(")
    assert "of its batch" not in entry


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("wrong", [[1], (1, 2), 5, {1: 2}])
def test_results_that_are_not_one_for_each_call_fail_all(app, start, wrong):
    @app.task(topic="wrong", max_attempts=1, batch=2, batch_wait=LATER)
    async def task(calls: list[Call]) -> list[int]:
        return wrong

    handles = [task.enqueue(n) for n in range(2)]
    start(app, report_errors=True)
    for handle in handles:
        with pytest.raises(TaskFailed, match="return a list of 2 results, one for each call, or None"):
            handle.result(LATER)


@on_each_host
@pytest.mark.threads
def test_a_result_that_is_not_as_annotated_fails_its_call(app, start):
    @app.task(topic="typed", max_attempts=1, batch=2, batch_wait=LATER)
    async def task(calls: list[Call]) -> list[int]:
        return [5, "five"]

    handles = [task.enqueue() for _ in range(2)]
    start(app, report_errors=True)
    ends = set()
    for handle in handles:
        try:
            ends.add(handle.result(LATER))
        except TaskFailed as error:
            assert "valid integer" in str(error)
            ends.add("failed")
    assert ends == {5, "failed"}


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_the_limit_of_time_is_for_a_batch_at_work(app, start, thread):
    """Calls wait for longer than the limit while they are gathered."""
    ended = threading.Event()

    def in_thread(calls: list[Call]) -> None:
        assert calls[0].job.time_is_up.wait(LATER)
        ended.set()

    async def in_loop(calls: list[Call]) -> None:
        try:
            await asyncio.sleep(LATER * 10)
        finally:
            ended.set()

    task = app.task(topic="slow", name="slow", max_attempts=1, keep=timedelta(minutes=1), time_limit=0.1, batch=2,
                    batch_wait=0.5)(in_thread if thread else in_loop)  # fmt: skip
    start(app, report_errors=True)
    handle = task.enqueue()
    with pytest.raises(TaskFailed, match="time limit"):
        handle.result(LATER)
    assert ended.wait(LATER)


@on_each_host
@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_a_call_that_is_cancelled_while_it_waits_does_not_run(app, start, thread):
    ran = []

    def note(calls: list[Call]) -> list[int]:
        ran.extend(call.args[0] for call in calls)
        return [0] * len(calls)

    class Left(Middleware):
        def failed(self, call, error):
            left.set()

    left = threading.Event()
    app.middleware.append(Left())
    task = app.task(topic="note", name="note", batch=3, batch_wait=LATER)(of(thread=thread, function=note))
    start(app, lease_ms=600)
    cancelled = task.enqueue("cancelled")
    eventually(lambda: cancelled.state() == ItemState.LEASED)
    assert cancelled.cancel()
    assert left.wait(LATER)
    for name in "abc":
        task.enqueue(name)
    eventually(lambda: len(ran) == 3)
    assert sorted(ran) == ["a", "b", "c"]


@pytest.mark.memory
def test_no_batch_runs_whose_calls_are_all_cancelled():
    sizes = []

    @App().task(batch=2, batch_wait=0.01)
    async def task(calls: list[Call]) -> None:
        sizes.append(len(calls))

    async def main():
        gathering = Gathering(task, task.batch, None)
        for n in range(2):
            future = gathering.add(Call(task, None, None, [n], {}), None)
            if n == 0:
                working = gathering._working
                gathering.cancel(future)
                await asyncio.wait((working,))
                assert future.cancelled()
        await future

    asyncio.run(main())
    assert sizes == [1]


@on_each_host
@pytest.mark.threads
def test_a_batch_at_work_is_cancelled_with_its_last_call(app, start):
    begun, ended = threading.Event(), threading.Event()

    @app.task(topic="long", batch=2, batch_wait=LATER)
    async def long(calls: list[Call]) -> None:
        begun.set()
        try:
            await asyncio.sleep(LATER * 10)
        finally:
            ended.set()

    start(app, lease_ms=600)
    handles = [long.enqueue(n) for n in range(2)]
    assert begun.wait(LATER)
    assert handles[0].cancel()
    eventually(lambda: app.client.topic_stats("long").leased == 1)
    assert not ended.is_set()
    assert handles[1].cancel()
    assert ended.wait(LATER)


@on_each_host
@pytest.mark.threads
def test_a_batch_ends_in_the_grace_of_a_stop(app):
    begun, go = threading.Event(), threading.Event()

    @app.task(topic="work", batch=4, batch_wait=0)
    def work(calls: list[Call]) -> list[int]:
        begun.set()
        assert go.wait(LATER)
        return [call.args[0] for call in calls]

    worker = app.worker(wait_ms=100, grace_ms=LATER * 1000)
    running = threading.Thread(target=worker.run)
    running.start()
    handles = app.enqueue_many([work.message(n) for n in range(4)])
    assert begun.wait(LATER)
    worker.stop()
    go.set()
    running.join(LATER)
    assert not running.is_alive()
    assert [handle.result(LATER) for handle in handles if handle.state() == ItemState.COMPLETED]
    eventually(lambda: app.client.topic_stats("work").leased == 0)


@dataclass
class Picture:
    path: str
    width: int = 100


@pytest.mark.memory
def test_a_plain_call_runs_a_batch_of_one():
    app, seen = App(), []

    def pool():
        yield "pool"
        seen.append("closed")

    @app.task(topic="resize", batch=10, arguments=Picture)
    def resize(calls: list[Call], through: str = Depends(pool)) -> list[str]:
        return [f"{through} {Picture(**call.kwargs)}" for call in calls]

    @app.task(topic="fails", batch=10)
    async def fails(calls: list[Call]) -> None:
        calls[0].fail(KeyError(calls[0].args[0]))

    assert resize("a.png", width=5) == "pool Picture(path='a.png', width=5)"
    assert seen == ["closed"]
    with pytest.raises(KeyError, match=r"a\.png"):
        asyncio.run(fails("a.png"))
    with pytest.raises(Invalid, match=r"task resize.*unexpected keyword argument 'height'"):
        resize("a.png", height=5)
    with pytest.raises(Invalid, match="task resize: width: Input should be a valid integer"):
        resize.message("a.png", width="wide")
    with pytest.raises(Invalid, match="fail takes an exception, not str"):
        Call(resize, None, None, [], {}).fail("text")


@pytest.mark.memory
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 0}, f"task task: batch is 0: give 1 to {MOST_HELD // 2} calls"),
        ({"batch": MOST_HELD}, f"batch is {MOST_HELD}: give 1 to"),
        ({"batch": True}, "batch is True: give"),
        ({"batch": 2.0}, r"batch is 2\.0: give"),
        ({"batch": 5, "batch_wait": -1}, "batch_wait is -1: give 0 ms or more"),
        ({"batch": 5, "batch_wait": "1"}, "batch_wait is '1': give seconds, or a timedelta"),
        ({"batch": 5, "arguments": 3}, "arguments is 3: give a function or a class"),
        ({"batch_wait": 0.2}, "task task: `batch_wait` is for a batch: give batch="),
        ({"arguments": Picture}, "task task: `arguments` is for a batch: give batch="),
    ],
)
def test_wrong_options_of_a_batch_are_refused(options, why):
    with pytest.raises(Invalid, match=why):

        @App().task(**options)
        def task(calls: list[Call]) -> None: ...


@pytest.mark.memory
def test_a_function_that_cannot_take_a_batch_is_refused():
    app = App()

    def of_job(job: Job) -> str:
        return ""

    def two(calls: list[Call], more: int) -> None: ...
    def with_job(job: Job, calls: list[Call]) -> None: ...
    def nothing() -> None: ...
    def number(calls: list[Call]) -> int: ...
    def injected(calls: list[Call], text: str = Depends(of_job)) -> None: ...

    for function in (two, with_job, nothing):
        with pytest.raises(Invalid, match=r"a batch is one parameter, `calls: list\[Call\]`, and dependencies"):
            app.task(batch=2)(function)
    with pytest.raises(Invalid, match="task number returns <class 'int'>: annotate a list"):
        app.task(batch=2)(number)
    with pytest.raises(Invalid, match="a dependency of a batch gets no job"):
        app.task(batch=2)(injected)


@pytest.mark.memory
def test_a_batch_has_a_topic_of_its_own():
    app = App()

    @app.task(topic="mail")
    def send() -> None: ...

    @app.task(topic="mail", batch=2)
    def gather(calls: list[Call]) -> None: ...

    with pytest.raises(Invalid, match="topic mail has the tasks send, gather: give gather, which takes batches, its"):
        app.worker()
    assert app.worker(["other"]).topics == ["other"]


class Strict(Exception):
    """It cannot be copied."""

    def __init__(self, *, field: str) -> None:
        super().__init__(f"{field} is wrong")


@pytest.mark.threads
@pytest.mark.parametrize("thread", [False, True])
def test_an_exception_that_cannot_be_copied(app, start, thread):
    def strict(calls: list[Call]) -> list[int]:
        if calls[0].args[0] == "wrong":
            raise Strict(field="name")
        return [0] * len(calls)

    options = {"topic": "strict", "max_attempts": 1, "batch": 3, "batch_wait": 0.05}
    task = app.task(name="strict", **options)(of(thread=thread, function=strict))
    handles = app.enqueue_many([task.message("wrong") for _ in range(3)])
    start(app, report_errors=True)
    for handle in handles:
        with pytest.raises(TaskFailed, match="Strict: name is wrong"):
            handle.result(LATER)
    assert task.enqueue("right").result(LATER) == 0


@pytest.mark.threads
def test_a_stop_waits_for_no_more_calls(app):
    ran = threading.Event()

    @app.task(topic="few", at_most_once=True, batch=10, batch_wait=10 * LATER)
    def few(calls: list[Call]) -> None:
        ran.set()

    worker = app.worker(wait_ms=100, grace_ms=LATER * 1000)
    running = threading.Thread(target=worker.run)
    running.start()
    few.enqueue(1)
    eventually(lambda: worker._gatherings and worker._gatherings["few"]._waiting)
    worker.stop()
    running.join(LATER)
    assert not running.is_alive()
    assert ran.is_set()
