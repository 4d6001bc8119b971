"""An App in a test: its clients for the time of the test, and workers that run until nothing is left."""

import asyncio
import os
import threading
from datetime import timedelta

import pytest
from tenacity import stop_after_attempt

from foqs import App, Call, Job, Retry
from foqs.client import Invalid, ItemState, RetryKind, RetryRule, Unavailable

pytestmark = pytest.mark.threads
NOWHERE = "127.0.0.1:9"
RULE = RetryRule(RetryKind.CONSTANT, first_ms=60_000, jitter=0.0)


@pytest.fixture
def app(foqs_server):
    app = App(NOWHERE, "shop", timeout_ms=2_000)
    app.ran = []
    with app.test_mode(foqs_server):
        yield app


@pytest.fixture
def note(app):
    @app.task(topic="notes")
    def note(what: str) -> None:
        app.ran.append(what)

    return note


# ------------------------------------------------------------------------------------------------ test_mode


@pytest.mark.parametrize("error", [None, KeyError("of the test")])
def test_the_clients_of_before_are_back_after_the_test(foqs_server, error):
    inner, outer, untouched = App(NOWHERE), App("127.0.0.1:10", "shop", token="secret"), App("127.0.0.1:11")

    @inner.task
    def work() -> None: ...

    outer.include(inner)
    later = work.options(delay=timedelta(hours=1))
    before = outer.client, inner.client
    with pytest.raises(KeyError) if error else outer.test_mode(foqs_server) as app:
        if error:
            with outer.test_mode(foqs_server):
                raise error
        assert app is outer
        assert {outer.client.address, inner.client.address} == {foqs_server.address}
        assert untouched.client.address == "127.0.0.1:11"
        work.enqueue()
        later.enqueue()
        assert [item.state for item in foqs_server.items("default", "shop")] == [ItemState.READY, ItemState.DELAYED]
    assert (outer.client, inner.client) == before
    assert outer.client.address == "127.0.0.1:10"
    for one in (inner, outer, untouched):
        one.close()


def test_each_event_loop_has_its_own_client_for_the_test(foqs_server):
    app = App(NOWHERE)

    @app.task
    async def work() -> None: ...

    async def main():
        before = app.aclient
        with app.test_mode(foqs_server):
            during = app.aclient
            await work.aenqueue()
            assert await app.worker().arun_until_empty() == 1
        assert app.aclient is before is not during
        await app.aclose()

    asyncio.run(main())


def test_a_client_ends_with_its_event_loop(foqs_server):
    """A WSGI server makes an event loop for each call of asynchronous code."""
    app = App()

    @app.task
    async def work() -> None: ...

    async def call():
        await work.aenqueue()
        return len(os.listdir("/proc/self/fd"))

    with app.test_mode(foqs_server):
        asyncio.run(call())
        open_files = [asyncio.run(call()) for _ in range(10)]
        assert len(set(open_files)) == 1
        assert len(app._clients._of_loops) == 0

        loop = asyncio.new_event_loop()  # one whose owner does not end its generators
        loop.run_until_complete(call())
        loop.close()
        asyncio.run(call())
        assert len(app._clients._of_loops) == 0


# ------------------------------------------------------------------------------------------------ run_until_empty


def test_a_thousand_tasks_run(app, note, record_property):
    began = asyncio.new_event_loop().time()
    app.enqueue_many([note.message(str(n)) for n in range(1_000)])
    assert app.worker().run_until_empty() == 1_000
    record_property("seconds", asyncio.new_event_loop().time() - began)
    assert set(app.ran) == {str(n) for n in range(1_000)}


def test_what_a_task_enqueues_runs_too(app, note):
    """Also in a topic whose worker had nothing to do before."""

    @app.task(topic="all", batch=10, batch_wait=0)
    def all_at_once(calls: list[Call]) -> None:
        for call in calls:
            note.enqueue(call.kwargs["what"])

    @app.task(topic="first")
    async def first() -> None:
        await all_at_once.aenqueue(what="a")
        await all_at_once.options(delay=timedelta(minutes=1)).aenqueue(what="b")

    first.enqueue()
    worker = app.worker()
    assert worker.run_until_empty() == 3
    assert app.ran == ["a"]


def test_delayed_tasks_stay_until_their_time(app, note, foqs_server):
    note.options(delay=timedelta(hours=1)).enqueue("later")
    note.options(at=foqs_server.now + timedelta(hours=2)).enqueue("at two")
    worker = app.worker()
    ran = [worker.run_until_empty()]
    for _ in range(2):
        foqs_server.advance(hours=1)
        ran.append(worker.run_until_empty())
    assert ran == [0, 1, 1]
    assert app.ran == ["later", "at two"]


def test_a_failed_task_is_tried_again_at_its_time(app, foqs_server):
    @app.task(max_attempts=3, retry=RULE)
    def fails(job: Job) -> None:
        app.ran.append(job.attempt)
        raise ValueError("of the task")

    handle = fails.enqueue()
    assert app.worker().run_until_empty() == 1
    foqs_server.advance(seconds=59)
    assert app.worker().run_until_empty() == 0
    foqs_server.advance(seconds=1)
    with pytest.raises(ValueError, match="of the task") as caught:
        app.worker().run_until_empty(raise_errors=True)
    assert "in fails" in "".join(caught.value.__notes__)  # its lines in the thread
    assert handle.state() is ItemState.DELAYED
    assert app.ran == [1, 2]


def test_words_about_the_next_attempt_are_no_errors(app):
    @app.task
    def waits() -> None:
        raise Retry(delay=timedelta(minutes=1))

    waits.enqueue()
    assert app.worker().run_until_empty(raise_errors=True) == 1


def test_the_time_stands_still_while_a_task_works(app, note, foqs_server):
    """Its lease does not end."""

    @app.task(topic="slow")
    def slow(job: Job) -> None:
        taken.set()
        assert moved.wait(30)
        app.ran.append(job.lease_lost.is_set())

    taken, moved = threading.Event(), threading.Event()
    slow.enqueue()
    worker = threading.Thread(target=app.worker(lease_ms=1_000).run_until_empty)
    worker.start()
    assert taken.wait(30)
    foqs_server.advance(ms=999)
    moved.set()
    worker.join(30)
    assert app.ran == [False]
    assert foqs_server.items("slow", "shop") == []


def test_schedules_are_written_first(app, foqs_server):
    @app.periodic("@every 1h", catch_up="all")
    def hourly() -> None:
        app.ran.append(foqs_server.now)

    assert app.worker().run_until_empty() == 0
    foqs_server.advance(hours=3)
    assert app.worker().run_until_empty() == 3


def test_results_are_there_after_the_run(app):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def main():
        async with app:
            handle = await double.aenqueue(21)
            assert await app.worker().arun_until_empty() == 1
            return await handle.aresult(timeout=30)

    assert asyncio.run(main()) == 42


def test_a_service_that_is_away_is_an_error():
    app = App(NOWHERE, retry_stop=stop_after_attempt(1))

    @app.task
    def work() -> None: ...

    with pytest.raises(Unavailable):
        app.worker().run_until_empty()


def test_a_wrong_schedule_is_an_error(app):
    @app.periodic("@every 1h")
    def work() -> None: ...

    app.schedules["work"]["cron"] = "never"
    with pytest.raises(Invalid, match=r"schedule\.work: cron"):
        app.worker().run_until_empty()


def test_a_stop_ends_the_run(app, note):
    """Though another worker had something to do."""

    @app.task(topic="many", batch=1, batch_wait=0)
    async def endless(calls: list[Call]) -> None:
        worker.stop()
        await endless.aenqueue()

    worker = app.worker()
    endless.enqueue()
    assert worker.run_until_empty() == 1


@pytest.mark.process
def test_a_real_host_is_emptied_too(foqs_dev):
    app = App(foqs_dev.address)
    ran = []

    @app.task
    def note(what: int) -> None:
        ran.append(what)
        if what:
            note.enqueue(what - 1)

    with app:
        note.enqueue(20)
        assert app.worker(wait_ms=50).run_until_empty() == 21
        assert app.worker().run_until_empty() == 0
    assert ran == list(range(20, -1, -1))
