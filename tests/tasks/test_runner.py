"""Tasks on a real host, from the enqueue to the result."""

import asyncio
import json
import threading
import time
import traceback
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from foqs import Depends, Job, Reject, Retry
from foqs.client import AsyncJob, Forbidden, Invalid, ItemState, RetryKind, RetryRule
from foqs.client._async.waits import SeenEvent
from foqs.tasks.handle import ResultLost, TaskFailed, wait
from foqs.tasks.middleware import Call, Middleware
from tests.client.peer import LATER, eventually, logged_tracebacks
from tests.client.real_server import on_each_host

pytestmark = pytest.mark.threads

AT_ONCE = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)


@on_each_host
def test_results_of_coroutines_and_threads(app, start):
    @app.task(topic="a")
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @app.task(topic="b")
    def name() -> str:
        return threading.current_thread().name

    @app.task
    def nothing() -> None: ...

    start(app)
    assert double.enqueue(4).result(LATER) == 8
    assert name.enqueue().result(LATER).startswith("foqs-task-")
    assert app.handle(double.enqueue(5).id).result(LATER) == 10
    handles = app.enqueue_many([double.message(n) for n in range(200)])
    waited = wait(handles, LATER)
    assert (len(waited.done), waited.not_done) == (200, [])
    assert [handle.result() for handle in handles] == [2 * n for n in range(200)]
    gone = nothing.enqueue()
    assert gone in wait([gone], LATER).done

    async def of_coroutines():
        async with app:
            handles = [await double.aenqueue(n) for n in range(20)]
            return await asyncio.gather(*[handle.aresult(LATER) for handle in handles])

    assert asyncio.run(of_coroutines()) == [2 * n for n in range(20)]


@on_each_host
def test_a_handle_shows_how_far_the_task_is(app, start):
    go = threading.Event()

    @app.task
    def work(job: Job) -> bytes:
        job.progress(1, 2, "half")
        job.log("one is done")
        assert go.wait(LATER)
        return b"%d" % job.attempt

    start(app)
    handle = work.enqueue()
    eventually(lambda: handle.progress() and handle.progress().text == "half")
    assert (handle.state(), handle.log()) == (ItemState.LEASED, ("one is done",))
    with pytest.raises(TimeoutError, match="it is LEASED"):
        handle.result(0.01)
    go.set()
    assert handle.result(LATER) == b"1"


@on_each_host
def test_a_checkpoint_is_there_at_the_next_attempt(app, start):
    seen = []

    @app.task(retry=AT_ONCE)
    async def work(job: Job) -> int:
        seen.append(job.last_checkpoint)
        job.checkpoint(b"step %d" % job.attempt)
        if job.attempt < 3:
            raise ValueError
        return job.attempt

    start(app)
    assert work.enqueue().result(LATER) == 3
    assert seen == [None, b"step 1", b"step 2"]


@on_each_host
def test_a_task_that_fails_for_good_says_why(app, start):
    @app.task(max_attempts=2, retry=AT_ONCE)
    def broken() -> int:
        raise ValueError("no such customer")

    start(app, report_errors=True)
    with pytest.raises(TaskFailed, match="failed after 2 attempts: ValueError: no such customer") as failed:
        broken.enqueue().result(LATER)
    assert failed.value.failure.topic == "default"


class Odd(Exception):
    pass


@on_each_host
@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({"reject_for": [KeyError]}, KeyError, 1),
        ({"reject_for": [LookupError]}, KeyError, 1),
        ({"reject_for": [KeyError]}, Odd, 3),
        ({"retry_for": [Odd]}, Odd, 3),
        ({"retry_for": [Odd]}, KeyError, 1),
        ({}, lambda: Reject("never"), 1),
    ],
)
def test_exceptions_decide_about_another_attempt(app, start, options, error, attempts):
    @app.task(max_attempts=3, retry=AT_ONCE, **options)
    async def task() -> int:
        raise error()

    start(app)
    with pytest.raises(TaskFailed) as failed:
        task.enqueue().result(LATER)
    assert failed.value.failure.attempts == attempts


@on_each_host
def test_a_retry_that_does_not_count(app, start):
    attempts = []

    @app.task(max_attempts=1)
    async def task(job: Job) -> int:
        attempts.append(job.attempt)
        if len(attempts) < 3:
            raise Retry(delay=timedelta(milliseconds=1), counts=False)
        return 1

    start(app)
    assert task.enqueue().result(LATER) == 1
    assert attempts == [1, 1, 1]


@on_each_host
def test_dependencies_end_after_the_task(app, start):
    events = []

    def connection():
        events.append("open")
        yield "c"
        events.append("closed")

    async def session(through: str = Depends(connection)):
        yield through * 2
        events.append("session closed")

    @app.task
    async def with_both(a: int, c: str = Depends(connection), s: str = Depends(session)) -> str:
        events.append("run")
        return f"{a} {c} {s}"

    @app.task
    def in_thread(c: str = Depends(connection)) -> str:
        return c

    start(app)
    assert with_both.enqueue(1).result(LATER) == "1 c cc"
    assert events == ["open", "run", "session closed", "closed"]
    assert in_thread.enqueue().result(LATER) == "c"
    assert events[4:] == ["open", "closed"]


@on_each_host
def test_middleware_surrounds_each_task(app, start):
    events = []

    class Notes(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, call: Call) -> None:
            events.append((self.name, "before", call.task.name))
            call.state[self.name] = call.job.attempt

        async def after(self, call: Call, result: object) -> None:
            events.append((self.name, "after", result))

        async def failed(self, call: Call, error: BaseException) -> None:
            events.append((self.name, type(error).__name__, call.state[self.name]))

    app.middleware += [Notes("outer"), Notes("inner")]

    @app.task
    def fine() -> int:
        return 7

    @app.task(max_attempts=1)
    async def broken() -> int:
        raise ValueError

    start(app)
    assert fine.enqueue().result(LATER) == 7
    with pytest.raises(TaskFailed):
        broken.enqueue().result(LATER)
    names = [("outer", "before"), ("inner", "before")]
    assert events == [
        *[(*name, "fine") for name in names], ("inner", "after", 7), ("outer", "after", 7),
        *[(*name, "broken") for name in names], ("inner", "ValueError", 1), ("outer", "ValueError", 1),
    ]  # fmt: skip


@on_each_host
@pytest.mark.parametrize(
    ("headers", "payload", "why"),
    [
        ({"foqs-task": "gone"}, b"{}", "WrongArgument: the task gone is not registered in this worker"),
        ({"foqs-task": "task"}, b'{"args":[],"kwargs":{"a":"x"}}', "task task: a: Input should be a valid integer"),
        ({"foqs-task": "task"}, b"junk", "task task: the payload is not the JSON"),
        (None, b"{}", "the item has no header foqs-task"),
    ],
    ids=["unregistered", "signature", "payload", "header"],
)
def test_an_item_that_no_task_takes_becomes_a_dead_letter(app, start, headers, payload, why):
    app.client.put_settings(
        {"topic.default": json.dumps({"max_attempts": 2, "retry": {"kind": "constant", "first_ms": 1}})}
    )

    @app.task
    def task(a: int) -> None: ...

    start(app)
    item_id = app.client.enqueue("default", payload, headers=headers)
    result = app.client.get_result(item_id, wait_ms=30_000)
    assert (result.failure.attempts, why in result.failure.reason) == (2, True), result.failure


@on_each_host
def test_without_dead_letters_such_an_item_waits(app, start, monkeypatch, caplog):
    monkeypatch.setattr("foqs.tasks.runner._HELD_FOR", timedelta(milliseconds=1))
    app.client.put_settings({"topic.default": json.dumps({"max_attempts": 2, "dead": None})})

    @app.task
    def known() -> None: ...

    worker = start(app)
    app.client.enqueue("default", b"{}", headers={"foqs-task": "later"})
    eventually(lambda: caplog.text.count("the task later is not registered in this worker") > 3)

    @app.task
    def later() -> int:
        return 5

    assert worker.topics == ["default"]
    eventually(lambda: app.client.topic_stats("default").ready + app.client.topic_stats("default").leased == 0)


@on_each_host
def test_a_time_limit_ends_a_coroutine_and_tells_a_thread(app, start):
    ends = []

    @app.task(max_attempts=1, time_limit=0.1)
    async def slow() -> int:
        try:
            await asyncio.sleep(LATER * 10)
        finally:
            ends.append("cancelled")
        return 1

    @app.task(max_attempts=1, time_limit=timedelta(milliseconds=100))
    def thread(job: Job) -> int:
        assert job.time_is_up.wait(LATER)
        ends.append(job.time_left_ms())
        return 1

    start(app)
    for task in (slow, thread):
        with pytest.raises(TaskFailed, match="time limit"):
            task.enqueue().result(LATER)
    assert ends == ["cancelled", 0.0]


@on_each_host
def test_threads_of_a_worker_share_the_event_of_its_stop(app, start):
    """One event for each task would stay until the end of the worker."""
    events = []

    @app.task
    def thread(job: Job) -> int:
        events.append(job.stopping)
        return 1

    worker = start(app)
    for _ in range(3):
        assert thread.enqueue().result(LATER) == 1
    assert len(set(map(id, events))) == 1
    assert not events[0].is_set()
    worker.stop()
    assert events[0].wait(LATER)


@on_each_host
def test_a_cancelled_task_does_not_run_or_is_cancelled(app, start):
    begun, ended = threading.Event(), threading.Event()

    @app.task
    async def long() -> int:
        begun.set()
        try:
            await asyncio.sleep(LATER * 10)
        finally:
            ended.set()
        return 1

    waiting = long.options(delay=timedelta(hours=1)).enqueue()
    assert waiting.cancel()
    assert not waiting.cancel()
    with pytest.raises(ResultLost):
        waiting.result(LATER)
    start(app, lease_ms=600)
    running = long.enqueue()
    assert begun.wait(LATER)
    assert running.cancel()
    assert ended.wait(LATER)


@on_each_host
def test_unique_tasks_share_a_handle(app, start):
    go, runs = threading.Event(), []

    @app.task
    def work(n: int) -> int:
        runs.append(n)
        assert go.wait(LATER)
        return n

    first, again = (work.options(unique="one").enqueue(n) for n in (1, 2))
    assert (first.duplicate, again.duplicate, first == again) == (False, True, True)
    start(app)
    go.set()
    assert again.result(LATER) == 1
    eventually(lambda: not work.options(unique="one").enqueue(3).duplicate)
    assert first.result(LATER) == 1


@on_each_host
def test_threads_that_do_not_end_keep_no_worker(app, start):
    """Their items come again when the leases end."""
    begun, go = threading.Event(), threading.Event()

    @app.task
    def stuck() -> int:
        begun.set()
        go.wait(LATER * 10)
        return 1

    worker = app.worker(wait_ms=100, grace_ms=10)
    thread = threading.Thread(target=worker.run)
    thread.start()
    stuck.enqueue()
    assert begun.wait(LATER)
    began = time.monotonic()
    worker.stop()
    thread.join(LATER)
    go.set()
    assert not thread.is_alive()
    assert time.monotonic() - began < LATER / 2


@on_each_host
def test_work_that_a_thread_only_returns_fails_the_task(app, start):
    @app.task(max_attempts=1)
    def lazy():
        return asyncio.sleep(0)

    start(app, report_errors=True)
    handle = lazy.options(keep=timedelta(minutes=1)).enqueue()
    with pytest.raises(TaskFailed, match=r"task lazy returned an awaitable .* and the worker did not run it"):
        handle.result(LATER)


@on_each_host
def test_a_worker_in_a_loop_leaves_its_client_open(app):
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def main():
        worker = app.worker(wait_ms=100)
        running = asyncio.create_task(worker.arun())
        handle = await double.aenqueue(2)
        assert await handle.aresult(LATER) == 4
        worker.stop()
        await running
        assert await handle.aresult(LATER) == 4
        await app.aclose()

    asyncio.run(main())


@on_each_host
@pytest.mark.parametrize("wrong", ["x", None, float("inf")])
def test_a_wrong_result_fails_the_run_and_middleware_sees_it(app, start, wrong):
    seen = []

    class Notes(Middleware):
        def after(self, call, result):
            seen.append("after")

        def failed(self, call, error):
            seen.append(type(error).__name__)

    app.middleware.append(Notes())

    @app.task(max_attempts=1)
    async def task() -> int:
        return wrong

    start(app)
    with pytest.raises(TaskFailed, match="WrongArgument: task task: result"):
        task.enqueue().result(LATER)
    assert seen == ["WrongArgument"]


def test_a_result_has_its_time_while_the_host_is_away(app, server):
    @app.task
    def task() -> int:
        return 1

    handle = task.enqueue()
    server.kill()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        handle.result(0.5)
    assert wait([handle], 0.2).not_done == [handle]
    assert time.monotonic() - began < LATER / 2
    server.start()
    assert handle.state() == ItemState.READY


@on_each_host
def test_an_exit_or_a_stop_iteration_of_a_task_fails_it(app, start):
    errors = iter([SystemExit(3), StopIteration(), KeyboardInterrupt(), None])

    @app.task(retry=AT_ONCE)
    def in_thread() -> str:
        error = next(errors, None)
        if error is not None:
            raise error
        return "done"

    start(app)
    assert in_thread.enqueue().result(LATER) == "done"


def test_topics_have_a_share_of_the_worker_by_their_weights(app, start):
    ran = []
    for topic in ("mail", "bulk"):
        app.task(name=topic, topic=topic)(partial(ran.append, topic))
    app.enqueue_many([app.tasks[topic].message() for topic in ("mail", "bulk") for _ in range(300)])
    worker = start(app, topics={"mail": 3, "bulk": 1}, concurrency=2)
    eventually(lambda: len(ran) == 600)
    assert worker.topics == ["mail", "bulk"]
    # Three in four: 150, give or take five standard deviations of 200 draws.
    assert 120 < ran[:200].count("mail") < 180


def test_a_topic_of_batches_may_have_a_weight(app, start):
    ran = []

    @app.task(topic="many", batch=5)
    def gather(calls: list[Call]) -> None:
        ran.extend(call.args[0] for call in calls)

    @app.task(topic="one")
    def single(n: int) -> None:
        ran.append(n)

    app.enqueue_many([task.message(n) for n, task in enumerate((gather, gather, single))])
    start(app, topics={"many": 9, "one": 1})
    eventually(lambda: sorted(ran) == [0, 1, 2])


@pytest.mark.parametrize("options", [{"reject_for": [ValueError]}, {"retry_for": [OSError]}])
def test_the_text_of_a_rejection_stays_in_the_worker(app, start, caplog, options):
    @app.task(max_attempts=3, keep=timedelta(minutes=1), **options)
    async def pays() -> None:
        raise ValueError("card 4711")

    start(app)
    with pytest.raises(TaskFailed) as raised:
        pays.enqueue().result(LATER)
    assert (raised.value.failure.reason, raised.value.failure.attempts) == ("ValueError", 1)
    eventually(lambda: 'raise ValueError("card 4711")' in logged_tracebacks(caplog))


def test_a_producer_cancels_its_own_call(app, start, caplog):
    """By its key, for which it needs no right to delete items."""
    begun = threading.Event()

    @app.task
    async def long() -> int:
        begun.set()
        await asyncio.sleep(LATER * 10)
        return 1

    def refused(*_, **__):
        raise Forbidden("no right admin")

    app.client.delete_items = refused
    start(app, lease_ms=600)
    handle = long.enqueue()
    assert begun.wait(LATER)
    assert handle.cancel()
    eventually(lambda: "lost the lease" in caplog.text)
    assert not handle.cancel()
    with pytest.raises(Forbidden):
        app.handle(handle.id).cancel()
    live = long.options(delay=timedelta(days=2)).enqueue()
    live._key = "forgotten"
    with pytest.raises(Forbidden):
        live.cancel()
    assert "the handler failed" not in caplog.text


def test_wrong_timeouts_and_lists_are_refused(app):
    @app.task(topic="none")
    def task() -> int: ...

    handle = task.enqueue()
    for timeout in ("5", True, float("nan")):
        with pytest.raises(Invalid, match=f"timeout is {timeout!r}: give seconds, a timedelta, or None"):
            handle.result(timeout)
    with pytest.raises(TimeoutError):
        handle.result(timedelta(milliseconds=1))
    with pytest.raises(Invalid, match="wait: entry 1 is of type ValueError, not a Handle"):
        wait([handle, ValueError()])
    with pytest.raises(Invalid, match="wait takes several of class Handle, not Handle"):
        wait(handle)
    with pytest.raises(Invalid, match="enqueue_many: entry 0 is of type str, not a Message"):
        app.enqueue_many(["x"])
    with pytest.raises(Invalid, match="include takes an App, not str"):
        app.include("shop.tasks")
    with pytest.raises(Invalid, match=r"annotate job with foqs\.Job, not with that of a Worker"):

        @app.task
        def other(job: AsyncJob) -> None: ...


def no_stock(of: str) -> int:
    raise LookupError(of)


@on_each_host
@pytest.mark.parametrize("thread", [False, True])
def test_the_log_begins_with_the_frame_of_the_task(app, start, thread, caplog):
    def price() -> int:
        return 3

    def sell(cost: int = Depends(price)) -> int:
        try:
            return no_stock("tea")
        except LookupError as error:
            raise RuntimeError("not sold") from error

    async def sell_in_loop(cost: int = Depends(price)) -> int:
        return sell(cost)

    task = app.task(name="sell", max_attempts=1)(sell if thread else sell_in_loop)
    start(app)
    with pytest.raises(TaskFailed):
        task.enqueue().result(LATER)
    eventually(lambda: "the handler failed" in caplog.text)
    (error,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    names = ["sell"] if thread else ["sell_in_loop", "sell"]
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == names
    assert [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)] == ["sell", "no_stock"]
    assert not hasattr(error, "__notes__")


def test_the_worker_knows_what_a_thread_has_found():
    event = SeenEvent()
    job = Job(SimpleNamespace(lease_lost=event), in_thread=True)
    assert not job.lease_lost.is_set() and not job.lease_lost.wait(0)
    event.set()
    assert not event.seen
    assert job.lease_lost.wait(0) and event.seen
    event.seen = False
    assert job.lease_lost.is_set() and event.seen
