"""Chains: the success of a task enqueues the next one, with the result."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from foqs import App, Call, EncryptedCodec, Job, JsonCodec, Retry
from foqs.client import DedupUntil, Invalid, ItemSpec, ItemState, RetryKind, RetryRule, Unavailable
from foqs.client.handlers import TASK_HEADER, WrongArgument
from foqs.tasks.clients import Clients
from foqs.tasks.codecs import Codecs, MsgpackCodec
from foqs.tasks.follow_ups import AFTER_HEADER, THEN_HEADER, follow_up_of, header_of, item_of, members_of
from foqs.testing import Server
from tests.client.peer import eventually

AGAIN = RetryRule(RetryKind.CONSTANT, first_ms=60_000, jitter=0.0)
threads = pytest.mark.threads


@pytest.fixture
def app(foqs_server: Server):
    app = App(namespace="shop")
    app.ran = []
    with app.test_mode(foqs_server):
        yield app


@pytest.fixture
def add(app):
    @app.task(topic="add", max_attempts=3, retry=AGAIN)
    def add(a: int, b: int = 1) -> int:
        app.ran.append((a, b))
        return a + b

    return add


@pytest.fixture
def show(app):
    @app.task(topic="show")
    async def show(given: int, words: str = "") -> str:
        app.ran.append(f"{given}{words}")
        return f"<{given}>"

    return show


def run(app, **options):
    return app.worker(**options).run_until_empty(raise_errors=True)


# ----------------------------------------------------------------------------------------------- on a service


@threads
def test_each_task_gets_the_result_before_it(app, add, show):
    @app.task(topic="end")
    def end(given: str) -> None:
        app.ran.append(given)

    handle = add.then(show).then(end).enqueue(1, b=2)
    assert run(app) == 3
    assert app.ran == [(1, 2), "3", "<3>"]
    assert handle.result(timeout=5) == 3, "the handle is that of the first call"
    assert asyncio.run(add.then(show).aenqueue(5)).id != handle.id
    assert run(app) == 2
    assert app.ran[3:] == [(5, 1), "6"]


@threads
def test_a_task_without_a_result_passes_no_argument(app, add, show):
    @app.task
    def begin() -> None: ...

    @app.task
    def go_on(given: int = 7) -> int:
        return given

    begin.then(go_on).then(show).enqueue()
    assert run(app) == 3
    assert app.ran == ["7"]


@threads
def test_each_call_has_its_own_options(app, add, show, foqs_server):
    later = show.options(
        topic="late", priority=4, tenant="acme", delay=timedelta(hours=1), headers={"kind": "late"}, max_attempts=2,
        throttle=["smtp"],
    )  # fmt: skip
    end = app.task(topic="end", name="end")(lambda given: None)
    first = add.options(priority=-3).then(later).then(end).enqueue(1)
    (before,) = foqs_server.items("add", "shop")
    assert (before.id, before.priority) == (first.id, -3)
    run(app)
    (item,) = foqs_server.items("late", "shop")
    assert (item.state, item.priority, item.fairness_key, item.throttle_keys) == (
        ItemState.DELAYED, 4, "acme", ("smtp",)
    )  # fmt: skip
    assert item.deliver_after_ms == round((foqs_server.now + timedelta(hours=1)).timestamp() * 1000)
    assert item.rules.max_attempts == 2
    assert item.headers["kind"] == "late"
    assert item.headers[AFTER_HEADER] == str(first.id)
    assert json.loads(item.headers[THEN_HEADER]) == [{"topic": "end", "headers": {TASK_HEADER: "end"}}]
    foqs_server.advance(hours=1)
    assert run(app, topics=["late"]) == 1
    (last,) = foqs_server.items("end", "shop")
    assert json.loads(last.payload) == {"args": ["<2>"], "kwargs": {}}
    assert THEN_HEADER not in last.headers


@threads
def test_a_failed_task_ends_the_chain_until_it_succeeds(app, show, foqs_server):
    errors = [ValueError("once"), Retry(delay=timedelta(minutes=1))]

    @app.task(topic="odd", retry=AGAIN, max_attempts=5)
    def odd(given: int) -> int:
        if errors:
            raise errors.pop(0)
        return given

    odd.then(show).enqueue(4)
    for _ in range(2):
        assert app.worker().run_until_empty() == 1
        assert foqs_server.items("show", "shop") == []
        foqs_server.advance(minutes=1)
    assert run(app) == 2
    assert app.ran == ["4"]


@threads
def test_a_repeated_attempt_stores_the_next_call_once(app, add, show, foqs_server, monkeypatch):
    stored = Clients.aenqueue

    async def lost(self, spec):
        monkeypatch.setattr(Clients, "aenqueue", stored)
        await stored(self, spec)
        raise Unavailable("the worker hears nothing of it")

    monkeypatch.setattr(Clients, "aenqueue", lost)
    add.then(show).enqueue(1)
    with pytest.raises(Unavailable):
        run(app, topics=["add"])
    foqs_server.advance(minutes=1)
    assert run(app) == 2
    assert sorted(map(str, app.ran)) == ["(1, 1)", "(1, 1)", "2"]
    assert app.client.topic_stats("add").ready == 0


@threads
@pytest.mark.parametrize("thread", [True, False])
def test_a_run_that_gives_its_item_back_enqueues_nothing(app, show, foqs_server, thread):
    def give_back(job: Job) -> int:
        if len(app.ran) == 0:
            app.ran.append("released")
            job.release()
        return 1

    async def coroutine(job: Job) -> int:
        return give_back(job)

    task = app.task(topic="back", name="back")(give_back if thread else coroutine)
    task.then(show).enqueue()
    before = []
    enqueue = Clients.aenqueue

    async def noted(self, spec):
        before.append(list(app.ran))
        return await enqueue(self, spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clients, "aenqueue", noted)
        assert run(app) == 3
    assert before == [["released"]], "only the second run has enqueued"
    assert app.ran == ["released", "1"]


@threads
def test_a_run_that_saw_that_its_lease_was_lost_enqueues_nothing(app, show, foqs_server):
    begun, runs = threading.Event(), []

    @app.task(topic="slow")
    def slow(job: Job) -> int:
        runs.append(job.attempt)
        if len(runs) == 1:
            begun.set()
            assert job.lease_lost.wait(30)
            return 1
        return 2

    slow.then(show).enqueue()
    worker = app.worker(["slow"], lease_ms=1_000, wait_ms=100)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert begun.wait(30)
        foqs_server.advance(seconds=5)
        eventually(lambda: foqs_server.items("show", "shop"), lambda: runs)
    finally:
        worker.stop(grace_ms=100)
        thread.join(30)
    (item,) = foqs_server.items("show", "shop")
    assert json.loads(item.payload)["args"] == [2], "of the run that was done"


@threads
def test_a_run_after_its_time_limit_enqueues_nothing(app, show, foqs_server):
    @app.task(topic="late", time_limit=0.05, retry=AGAIN, max_attempts=2)
    def late(job: Job) -> int:
        if job.attempt == 1:
            assert job.time_is_up.wait(30)
        return job.attempt

    late.then(show).enqueue()
    assert app.worker(["late"]).run_until_empty() == 1
    assert foqs_server.items("show", "shop") == []
    foqs_server.advance(minutes=1)
    assert run(app) == 2
    assert app.ran == ["2"]


@threads
def test_a_refused_next_call_makes_a_dead_letter(app, add, show, foqs_server):
    app.client.put_settings({"topic.add": json.dumps({"dead": {"topic": "dead"}})})
    add.then(show.options(topic="x" * 300)).enqueue(1)
    assert app.worker().run_until_empty() == 1
    (dead,) = foqs_server.items("dead", "shop")
    assert dead.failure.reason.startswith("the service refused the task show that follows: topic")


@threads
def test_an_item_with_a_wrong_header_does_not_run(app, add, foqs_server):
    app.client.enqueue("add", b'{"args":[1],"kwargs":{}}', headers={TASK_HEADER: "add", THEN_HEADER: "[1"})
    with pytest.raises(Invalid, match=f"the header {THEN_HEADER} is no list of follow-ups"):
        run(app)
    assert app.ran == []


@threads
def test_a_task_of_many_calls_may_be_in_a_chain(app, add, show):
    @app.task(topic="many", batch=10, batch_wait=0.01)
    def double(calls: list[Call]) -> list[int]:
        for call in calls:
            if call.args[0] == 3:
                call.fail(ValueError("three"))
        return [2 * call.args[0] for call in calls]

    for number in range(1, 4):
        add.then(double).then(show).enqueue(number)
    assert app.worker().run_until_empty() == 3 + 3 + 2
    assert sorted(one for one in app.ran if isinstance(one, str)) == ["4", "8"]


@threads
@pytest.mark.parametrize("codec", [MsgpackCodec(), [EncryptedCodec({"a": b"k" * 32}), JsonCodec()]])
def test_results_are_passed_on_by_the_codec_of_the_app(foqs_server, codec):
    app = App(namespace="shop", codec=codec)
    ran = []

    @app.task(topic="day")
    def day(text: str) -> datetime:
        return datetime.fromisoformat(text)

    @app.task(topic="show")
    def show(at: datetime) -> None:
        ran.append(at)

    with app.test_mode(foqs_server):
        day.then(show).enqueue("2026-01-05T12:00:00+00:00")
        assert app.worker(["day"]).run_until_empty(raise_errors=True) == 1
        (item,) = foqs_server.items("show", "shop")
        assert item.headers["content-type"] == app._clients.codecs.writes.content_type
        assert app.worker().run_until_empty(raise_errors=True) == 1
    assert ran == [datetime(2026, 1, 5, 12, tzinfo=UTC)]


@threads
def test_keys_of_the_user_stay(app, add, show, foqs_server):
    add.then(show.options(unique="the-one")).enqueue(1)
    add.then(show.options(order_key="in-order")).enqueue(2)
    add.then(show.options(unique="the-one")).enqueue(3)
    assert run(app, topics=["add"]) == 3
    items = foqs_server.items("show", "shop")
    assert sorted(json.loads(item.payload)["args"][0] for item in items) == [2, 3], "of one unique text, one waits"
    assert {item.order_key for item in items} == {"", "in-order"}
    assert app.client.find_item("the-one").topic == "show"


# ----------------------------------------------------------------------------------------------- what may follow


@threads
def test_what_cannot_follow_is_refused_at_once(add, show):
    app = App()

    @app.task
    def two(a: int, b: int) -> int:
        return a

    @app.task
    def none() -> None: ...

    for other, why in (
        (two, r"task two cannot follow add: it gets the result as its one argument; task two.*missing.*'b'"),
        (none, "task none cannot follow add"),
        (add.then(show), "the tasks of a chain one by one"),
        (show.message(1), "a task follows a task, not Message: give it without arguments"),
        (len, "a task follows a task"),
    ):
        with pytest.raises(Invalid, match=why):
            add.then(other)
    with pytest.raises(Invalid, match="task show cannot follow none: it gets no argument"):
        none.then(show)
    with pytest.raises(Invalid, match="task two"):
        add.then(show).then(two)
    with pytest.raises(Invalid, match="task add"):
        add.then(show).enqueue("no number")
    assert repr(add.then(show)) == "Chain(add, show)"


# ----------------------------------------------------------------------------------------------- the header


CODECS = Codecs("shop", None)


def test_the_header_keeps_what_each_item_has():
    steps = [
        ItemSpec("a", b"", headers={TASK_HEADER: "one", "content-type": "text/x", "kind": "k"}, dedup_key="random"),
        ItemSpec("b", b"", headers={TASK_HEADER: "two"}, priority=3, ttl_ms=5, batch=7, order_key="o"),
    ]
    header = header_of(steps)
    assert "random" not in header
    first = follow_up_of(header)
    made = item_of(first, [1], 99, CODECS)
    assert (made.topic, made.dedup_key, made.payload) == ("a", "foqs-then:99", b'{"args":[1],"kwargs":{}}')
    assert made.dedup_until is DedupUntil.WINDOW, "a random key would be replaced while its host is away"
    assert made.headers == {
        TASK_HEADER: "one", "kind": "k", "content-type": "application/json", AFTER_HEADER: "99", THEN_HEADER: first.rest
    }  # fmt: skip
    second = follow_up_of(made.headers[THEN_HEADER])
    made = item_of(second, [], 100, CODECS)
    assert (made.topic, made.priority, made.ttl_ms, made.batch) == ("b", 3, 5, 7)
    assert (made.order_key, made.dedup_key) == ("o", None)
    assert second.rest == "" and THEN_HEADER not in made.headers


def test_all_follow_ups_become_members_of_a_batch():
    steps = [ItemSpec(topic, b"", headers={TASK_HEADER: topic}) for topic in "ab"]
    headers = members_of({THEN_HEADER: header_of(steps), "x": "y"}, 1 << 50)
    first = follow_up_of(headers[THEN_HEADER])
    second = follow_up_of(first.rest)
    assert (first.spec.batch, second.spec.batch, headers["x"]) == (1 << 50, 1 << 50, "y")
    assert members_of({"x": "y"}, 3) == {"x": "y"}


@pytest.mark.parametrize(
    "header", ["", "x", "3", "[]", "{}", "[3]", '[{"topic": "t"}]', '[{"topic": 3, "headers": 4}]', '[{"colour": 1}]']
)
def test_a_wrong_header_is_an_error(header):
    with pytest.raises(WrongArgument, match=f"the header {THEN_HEADER} is no list of follow-ups"):
        follow_up_of(header)
