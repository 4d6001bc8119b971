"""Batches of calls that end together, and what their ends enqueue."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta

import pytest

from foqs import App, BatchEnd, Job
from foqs.client import BatchCounts, BatchState, Client, Invalid, ItemFilter, NotFound, Unavailable
from foqs.client.handlers import WrongArgument
from foqs.tasks.item_batch import end_in
from foqs.testing import Server

threads = pytest.mark.threads


@pytest.fixture
def app(foqs_server: Server):
    app = App(namespace="shop")
    app.ends, app.ran = [], []
    with app.test_mode(foqs_server):
        yield app


@pytest.fixture
def work(app):
    @app.task(topic="work", max_attempts=1)
    def work(number: int) -> int:
        if number < 0:
            raise ValueError("below 0")
        app.ran.append(number)
        return number

    return work


@pytest.fixture
def end(app):
    @app.task(topic="ends")
    async def end(job: Job, words: str) -> None:
        assert job.batch_end is not None
        app.ends.append((words, job.batch_end))

    return end


def run(app, server, *topics):
    """Run ready items, let the counts reach the home of the batch, and run the items that it stores."""
    ran = app.worker(list(topics) or None).run_until_empty()
    server.advance(seconds=1)
    return ran + app.worker(list(topics) or None).run_until_empty()


# ----------------------------------------------------------------------------------------------- a batch's life


@threads
def test_a_batch_that_succeeds_enqueues_both(app, work, end, foqs_server):
    with app.batch(on_success=end.message("well"), on_end=end.message("end")) as batch:
        assert batch.info().state == BatchState.OPEN
        handle = batch.add(work, number=1)
        others = batch.add_many([work.message(2), work.options(priority=-1).message(3)])
        work.options(batch=batch).enqueue(4)
    found = batch.info()
    assert (found.id, found.state, found.counts.members, found.ended) == (batch.id, BatchState.CLOSED, 4, False)
    assert [item.batch for item in foqs_server.items("work", "shop")] == [batch.id] * 4
    assert run(app, foqs_server) == 4 + 2
    assert handle.result(timeout=5) == 1
    assert [one.result(timeout=5) for one in others] == [2, 3]
    counts = BatchCounts(members=4, completed=4)
    assert sorted(app.ends) == [
        ("end", BatchEnd(batch.id, BatchState.SUCCEEDED, counts, ())),
        ("well", BatchEnd(batch.id, BatchState.SUCCEEDED, None, ())),
    ]
    found = batch.wait(timeout=5)
    assert (found.state, found.counts) == (BatchState.SUCCEEDED, counts)
    assert app.batch_of(batch.id) == batch != app.batch_of(batch.id + 1)


@threads
def test_the_end_of_a_batch_names_the_members_that_failed(app, work, end, foqs_server):
    with app.batch(on_success=end.message("well"), on_end=end.message("end")) as batch:
        handles = [batch.add(work, number) for number in (-1, 0, -2)]
    assert run(app, foqs_server) == 3 + 1
    failed = tuple(handles[at].id for at in (0, 2))
    assert app.ends == [("end", BatchEnd(batch.id, BatchState.ENDED, BatchCounts(3, completed=1, failed=2), failed))]
    assert batch.info().failed_ids == failed


@threads
def test_coroutines_have_the_same(app, work, end, foqs_server):
    async def use():
        async with app.batch(on_end=end.message("end")) as batch:
            await batch.aadd(work, 1)
            await batch.aadd_many([work.message(2), work.message(3)])
        assert (await batch.ainfo()).counts.members == 3
        with pytest.raises(TimeoutError, match=r"0 of 3 members have ended, and it is CLOSED"):
            await batch.await_(timeout=0.01)
        with pytest.raises(KeyError):
            async with app.batch(on_end=end.message("other")) as other:
                await other.aadd(work, 4)
                raise KeyError("in the block")
        assert (await other.ainfo()).state == BatchState.CANCELLED
        third = await app.batch().__aenter__()
        await third.acancel()
        await app.worker().arun_until_empty()
        foqs_server.advance(seconds=1)
        await app.worker().arun_until_empty()
        assert (await batch.await_(timeout=5)).counts.completed == 3
        await app.aclose()

    asyncio.run(use())
    assert sorted(app.ran) == [1, 2, 3]
    assert sorted((words, one.state) for words, one in app.ends) == [
        ("end", BatchState.SUCCEEDED), ("other", BatchState.CANCELLED)
    ]  # fmt: skip


@threads
def test_an_exception_cancels_the_batch_and_is_raised_again(app, work, end, foqs_server):
    with (
        pytest.raises(ZeroDivisionError),
        app.batch(on_success=end.message("well"), on_end=end.message("end")) as batch,
    ):
        batch.add(work, 1)
        1 / 0  # noqa: B018
    with pytest.raises(Invalid, match="cancelled"):
        batch.add(work, 2)
    assert run(app, foqs_server) == 1
    assert app.ran == []
    assert [(words, one.state, one.counts.cancelled) for words, one in app.ends] == [("end", BatchState.CANCELLED, 1)]


@threads
def test_the_error_of_the_block_outlives_one_of_the_service(app, work, monkeypatch):
    def away(self, batch):
        raise Unavailable("no host")

    monkeypatch.setattr(Client, "cancel_batch", away)
    with pytest.raises(KeyError) as raised, app.batch():
        raise KeyError("of the block")
    assert len(raised.value.__notes__) == 1
    assert raised.value.__notes__[0].endswith("was not cancelled, and stays open until its TTL ends: no host")


@threads
def test_a_batch_expires_in_the_time_of_the_test(app, work, end, foqs_server):
    batch = app.batch(on_success=end.message("well"), on_end=end.message("end"), ttl=timedelta(hours=2)).__enter__()
    batch.add(work, 1)
    foqs_server.advance(hours=1, minutes=59)
    assert not batch.info().ended
    foqs_server.advance(minutes=1, seconds=1)
    assert batch.info().state == BatchState.EXPIRED
    with pytest.raises(Invalid, match="has ended"):
        batch.add(work, 2)
    assert run(app, foqs_server) == 2
    assert [(words, one.state) for words, one in app.ends] == [("end", BatchState.EXPIRED)]
    foqs_server.advance(days=2)
    with pytest.raises(NotFound):
        batch.info()


@threads
def test_a_batch_waits_for_a_batch_that_is_a_member(app, work, end, foqs_server):
    with app.batch(on_end=end.message("outer")) as outer:
        with app.batch(on_end=end.message("inner"), parent=outer) as inner:
            inner.add(work, -1)
        assert inner.info().parent == outer.id
    assert not outer.info().ended
    run(app, foqs_server)
    run(app, foqs_server)
    assert [(words, one.state, one.counts.failed) for words, one in app.ends] == [
        ("inner", BatchState.ENDED, 1), ("outer", BatchState.ENDED, 1)
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------- members


@threads
def test_a_member_adds_members_before_the_batch_ends(app, work, end, foqs_server):
    @app.task(topic="plan")
    def plan(job: Job, count: int) -> None:
        assert job.batch is not None
        assert job.batch_end is None
        job.batch.add_many(work.message(number) for number in range(count))

    @app.task(topic="plan")
    async def plan_async(job: Job, count: int) -> None:
        await job.batch.aadd(plan, count)

    @app.task(topic="plan")
    def alone(job: Job) -> None:
        assert job.batch is None
        app.ran.append("alone")

    with app.batch(on_success=end.message("well")) as batch:
        batch.add(plan_async, 3)
    alone.enqueue()
    assert run(app, foqs_server) == 2 + 3 + 1 + 1
    assert sorted(map(str, app.ran)) == ["0", "1", "2", "alone"]
    assert batch.info().counts == BatchCounts(members=5, completed=5)
    assert len(app.ends) == 1


@threads
def test_each_task_of_a_chain_is_a_member(app, work, end, foqs_server):
    @app.task(topic="next")
    def next_one(number: int) -> int:
        return number

    with app.batch(on_end=end.message("end")) as batch:
        batch.add(work.then(next_one).then(work), 7)
        batch.add(work.then(next_one), -1)
    assert app.worker(["work"]).run_until_empty() == 2
    foqs_server.advance(seconds=1)
    assert not batch.info().ended, "the next one waits"
    assert [item.batch for item in foqs_server.items("next", "shop")] == [batch.id]
    assert run(app, foqs_server) == 2 + 1
    assert app.ran == [7, 7]
    assert [one.counts for _, one in app.ends] == [BatchCounts(members=4, completed=3, failed=1)]


@threads
def test_options_make_the_first_task_alone_a_member(app, work, end, foqs_server):
    @app.task(topic="next")
    def next_one(number: int) -> None: ...

    with app.batch() as batch:
        # Only the first one is a member.
        work.options(batch=batch, tenant="acme").then(next_one).enqueue(1)
    app.worker(["work"]).run_until_empty()
    foqs_server.advance(seconds=1)
    assert batch.info().counts == BatchCounts(members=1, completed=1)
    (item,) = foqs_server.items("next", "shop")
    assert item.batch is None
    with app.batch() as other:
        (item,) = [other.add(next_one, 3)]
        listed = app.client.list_items("next", filter=ItemFilter(batch=other.id))
        assert [one.id for one in listed] == [item.id]


@threads
def test_add_many_raises_the_first_error(app, work, foqs_server):
    with pytest.raises(Invalid, match="topic"), app.batch() as batch:
        batch.add_many([work.message(1), work.options(topic="x" * 300).message(2), work.message(3)])
    found = batch.info()
    assert (found.state, found.counts.members) == (BatchState.CANCELLED, 2)


@threads
def test_a_callback_may_begin_a_chain(app, work, end, foqs_server):
    @app.task(topic="sum")
    def total(job: Job) -> str:
        return str(job.batch_end.counts.completed)

    @app.task(topic="say")
    def say(given: str) -> None:
        app.ran.append(given)

    with app.batch(on_end=total.options(delay=timedelta(hours=1)).then(say).message()) as batch:
        batch.add(work, 1)
    assert run(app, foqs_server) == 1
    foqs_server.advance(hours=1)
    assert run(app, foqs_server) == 2
    assert app.ran == [1, "1"]


# ----------------------------------------------------------------------------------------------- wrong uses


@threads
def test_wrong_uses_are_refused(app, work, end):
    made = app.batch()
    with pytest.raises(Invalid, match=r"use it inside `with app.batch\(\) as batch:`"):
        made.add(work, 1)
    with pytest.raises(Invalid, match="not created yet"):
        work.options(batch=made)
    with made as batch:
        with pytest.raises(Invalid, match="created already"), batch:
            raise AssertionError
        with pytest.raises(Invalid, match="add_many: entry 0 is of type int, not a Message"):
            batch.add_many([1])
        with pytest.raises(Invalid, match="task work: number"):
            batch.add(work, "none")
        with pytest.raises(TypeError, match=r"app.batch_of\(id\)"):
            pickle.dumps(batch)
    with pytest.raises(Invalid, match="task work: batch is 5: give a batch"):
        work.options(batch=5)
    with pytest.raises(Invalid, match="created already"), app.batch_of(3):
        pass
    with pytest.raises(NotFound):
        app.batch_of(3).info()


@threads
def test_a_callback_without_its_meaning_is_refused(app, work, foqs_server):
    at = foqs_server.now
    with app.batch() as batch:
        for option in ({"unique": "u"}, {"order_key": "o"}, {"at": at}, {"batch": batch}):
            (name,) = option
            for callback in ("on_success", "on_end"):
                with pytest.raises(Invalid, match=f"{callback}: a call at the end of a batch has no {name}"):
                    app.batch(**{callback: work.options(**option).message(1)})
    for given in (work, 3):
        with pytest.raises(Invalid, match=r"on_end is of type .*: give a call of a task, task.message\(...\)"):
            app.batch(on_end=given)
    with pytest.raises(Invalid, match="ttl is 3: give a timedelta"):
        app.batch(ttl=3)
    with pytest.raises(Invalid, match="parent is 3: give a batch"):
        app.batch(parent=3)


@threads
def test_a_wait_ends_with_its_time(app, work):
    with app.batch() as batch:
        batch.add(work, 1)
        with pytest.raises(
            TimeoutError, match=f"batch {batch.id} has not ended: 0 of 1 members have ended, and it is OPEN"
        ):
            batch.wait(timeout=timedelta(milliseconds=250))


@threads
def test_a_wait_through_an_outage_ends_with_its_time(app, monkeypatch):
    def away(self, batch, timeout_ms):
        assert 1 <= timeout_ms <= 1_000
        raise Unavailable("no host")

    with app.batch() as batch:
        pass
    monkeypatch.setattr(Client, "get_batch", away)
    with pytest.raises(TimeoutError, match="has not ended: no host"):
        batch.wait(timeout=0)
    with pytest.raises(Unavailable):
        batch.wait(timeout=0.9)


# ----------------------------------------------------------------------------------------------- headers


def test_headers_of_an_end():
    assert end_in({}) is None
    assert Job().batch is Job().batch_end is None
    told = {
        "foqs-batch": "7", "foqs-batch-state": "ENDED", "foqs-batch-failed": "1,2",
        "foqs-batch-counts": '{"members": 3, "failed": 2, "later": 9}',
    }  # fmt: skip
    assert end_in(told) == BatchEnd(7, BatchState.ENDED, BatchCounts(3, failed=2), (1, 2))


@pytest.mark.parametrize(
    "headers",
    [
        {"foqs-batch": "x"},
        {"foqs-batch": "7", "foqs-batch-state": "SOON"},
        {"foqs-batch": "7", "foqs-batch-counts": "{"},
        {"foqs-batch": "7", "foqs-batch-counts": "3"},
        {"foqs-batch": "7", "foqs-batch-failed": "1;2"},
    ],
)
def test_headers_that_no_batch_has(headers):
    with pytest.raises(WrongArgument, match="the headers foqs-batch are not as a batch has them"):
        end_in(headers)
