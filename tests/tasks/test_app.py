"""Tasks on an App: how they are declared, and how an enqueue survives lost replies."""

import asyncio
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path

import pytest

from foqs import App, Depends, Job
from foqs.client import DedupUntil, Delivery, Invalid, ItemSpec, OnDuplicate, OutcomeUnknown, RetryKind, RetryRule
from foqs.tasks import Message
from tests.client.peer import LATER, Act, refused, script

ROOT = Path(__file__).parent.parent.parent


def declared(**options):
    app = App()

    @app.task(**options)
    def task(a: int = 0) -> None: ...

    return task


@pytest.mark.threads
def test_a_plain_call_of_a_task_is_the_function():
    app, opened = App(), []

    def connection():
        opened.append("open")
        yield "connection"
        opened.append("closed")

    @app.task
    def add(job: Job, a: int, b: int = 2) -> int:
        job.progress(1)
        job.log("lost")
        assert (job.id, job.attempt, job.time_left_ms(), job.stopping.is_set()) == (0, 1, None, False)
        return a + b

    @app.task
    async def send(to: str, through: str = Depends(connection)) -> str:
        return f"{to} by {through}"

    assert (add(1), add.name, add.__name__) == (3, "add", "add")
    assert asyncio.run(send("ada")) == "ada by connection"
    assert opened == ["open", "closed"]


@pytest.mark.memory
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"topic": "mail", "priority": -1}, {"topic": "mail", "priority": -1}),
        ({"delay": timedelta(seconds=1.5)}, {"delay_ms": 1_500}),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"deliver_after_ms": 1_767_225_600_000}),
        ({"ttl": timedelta(days=1)}, {"ttl_ms": 86_400_000}),
        ({"tenant": "acme", "weight": 3}, {"fairness_key": "acme", "weight": 3}),
        ({"throttle": ["smtp"]}, {"throttle_keys": ["smtp"]}),
        ({"unique": "k"}, {"dedup_key": "k", "dedup_until": DedupUntil.DONE}),
        ({"order_key": "k"}, {"order_key": "k", "dedup_key": None}),
        ({"unique": "k", "unique_until": DedupUntil.STARTED}, {"dedup_until": DedupUntil.STARTED}),
        ({"at_most_once": True}, {"delivery": Delivery.AT_MOST_ONCE}),
        ({}, {"topic": "default", "rules": None, "dedup_until": None}),
    ],
)
def test_options_are_fields_of_the_item(options, fields):
    for task in (declared(**options), declared().options(**options)):
        spec = task.message(1).spec
        assert {name: getattr(spec, name) for name in fields} == fields
        assert spec.headers == {"foqs-task": "task", "content-type": "application/json"}


@pytest.mark.memory
@pytest.mark.parametrize(
    "options", [{"unique_until": DedupUntil.STARTED}, {"on_duplicate": OnDuplicate.REPLACE}], ids=repr
)
def test_how_to_be_unique_needs_unique(options):
    """It may be a default of the task, whose text each call has."""
    (name,) = options
    for task in (declared(**options), declared().options(**options)):
        with pytest.raises(Invalid, match=f"task task: {name} has no effect without unique"):
            task.message(1)
        assert getattr(task.options(unique="k").message(1).spec, name.replace("unique", "dedup")) in options.values()


@pytest.mark.memory
def test_one_of_delay_and_at_replaces_the_other():
    soon, then = timedelta(seconds=1), datetime(2026, 1, 1, tzinfo=UTC)
    assert declared(delay=soon).options(at=then).message().spec.delay_ms is None
    assert declared(at=then).options(delay=soon).message().spec.deliver_after_ms is None


@pytest.mark.memory
def test_rules_travel_with_the_item():
    rule = RetryRule(RetryKind.CONSTANT, first_ms=5)
    rules = declared(max_attempts=5, retry=rule, keep=timedelta(hours=1)).message().spec.rules
    assert (rules.max_attempts, rules.retry, rules.keep_ms) == (5, rule, 3_600_000)

    @App().task
    def counts() -> int:
        return 1

    assert counts.message().spec.rules.keep_ms == 600_000, "a result is kept for 10 minutes"


@pytest.mark.memory
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"at_most_once": True, "max_attempts": 3}, "task task: max_attempts has no effect with at_most_once"),
        ({"at_most_once": True, "retry": RetryRule()}, "task task: retry has no effect with at_most_once"),
        ({"topci": "mail"}, "task task: unknown option topci: there are topic, priority"),
        ({"time_limit": 0}, "time_limit is 0: give 1 ms or more"),
        ({"time_limit": "60"}, "time_limit is '60': give seconds, or a timedelta"),
        ({"time_limit": float("nan")}, "time_limit is nan: give seconds"),
        ({"delay": 5}, "task task: delay is 5: give a timedelta"),
        ({"keep": 5}, "keep is 5: give a timedelta"),
        ({"at": datetime(2026, 1, 1)}, "give a datetime with a time zone"),  # noqa: DTZ001
        ({"topic": 3}, "task task: topic is 3: give a str"),
        ({"topic": ""}, "task task: topic is empty"),
        ({"tenant": 5}, "tenant is 5: give a str"),
        ({"unique": ""}, "unique is empty"),
        ({"order_key": 5}, "order_key is 5: give a str"),
        ({"throttle": "k"}, "throttle is 'k': give a list of keys"),
        ({"throttle": 5}, "throttle is 5: give a list of keys"),
        ({"throttle": [5]}, r"throttle is \[5\]: give a list of keys"),
        ({"headers": {"a": 1}}, "headers is .*: give texts by their names"),
        ({"queue": "mail"}, "task task: unknown option queue: give topic"),
        ({"max_attempts": "3"}, "max_attempts is '3': give a int"),
        ({"headers": [1]}, "headers is .*: give a Mapping"),
        ({"at_most_once": "yes"}, "at_most_once is 'yes': give a bool"),
        ({"unique_until": "done"}, "unique_until is 'done': give a DedupUntil"),
        ({"retry_for": [int]}, "retry_for has <class 'int'>: give classes of exceptions"),
        ({"reject_for": [ValueError("x")]}, "reject_for has ValueError"),
    ],
)
def test_a_wrong_option_is_an_error_where_it_is_given(options, why):
    with pytest.raises(Invalid, match=why):
        declared(**options)


@pytest.mark.memory
def test_wrong_options_of_an_app_and_a_worker_are_found_at_once():
    with pytest.raises(Invalid, match="timeout_ms"):
        App(timeout_ms="x")
    with pytest.raises(Invalid, match="App has no option bogus: there are address, namespace, token"):
        App(bogus=1)
    app = App()
    app.task(name="t")(lambda: None)
    for topics in ("mail", []):
        with pytest.raises(Invalid, match="give a list of at least one topic"):
            app.worker(topics)
    for weight in (0, True, 1.5, 1_001):
        with pytest.raises(Invalid, match="topics: weight of 'mail' is"):
            app.worker({"mail": weight, "default": 1})
    with pytest.raises(Invalid, match=r"task t: time_limit is an option of @app\.task only"):
        app.tasks["t"].options(time_limit=3)
    with pytest.raises(Invalid, match="worker has no option concurency"):
        app.worker(concurency=1)


@pytest.mark.memory
def test_objects_and_partials_may_be_tasks():
    class Adds:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    app = App()
    assert app.task(name="object")(Adds())(1, 2) == 3
    assert app.task(name="partial")(partial(Adds(), 1))(2) == 3


@pytest.mark.memory
def test_dependencies_get_the_job_and_arguments():
    app = App()

    def attempt(job: Job, a: int) -> str:
        return f"{job.attempt} {a}"

    def needs(limit: int) -> int:
        return limit

    @app.task
    def with_job(a: int, text: str = Depends(attempt)) -> str:
        return text

    assert with_job(5) == "1 5"
    with pytest.raises(Invalid, match="a dependency needs limit, which is no parameter of the task"):

        @app.task
        def lacks(a: int, limited: int = Depends(needs)) -> None: ...


@pytest.mark.threads
def test_a_dependency_cannot_swallow_the_exception():
    app = App()

    def swallows():
        with suppress(ValueError):
            yield 1

    @app.task
    def plain(one: int = Depends(swallows)) -> None:
        raise ValueError

    @app.task
    async def coroutine(one: int = Depends(swallows)) -> None:
        raise ValueError

    for call in (plain, lambda: asyncio.run(coroutine())):
        with pytest.raises(RuntimeError, match="a dependency has swallowed the exception"):
            call()


@pytest.mark.memory
def test_two_tasks_cannot_have_one_name():
    app, other = App(), App()
    for one in (app, other):

        @one.task(name="send")
        def task() -> None: ...

    with pytest.raises(Invalid, match="there is a task send already"):
        app.include(other)
    with pytest.raises(Invalid, match="there is a task send already"):
        app.task(name="send")(lambda: None)


@pytest.mark.memory
def test_included_tasks_are_those_of_the_app():
    app, other = App(), App()

    @other.task(topic="mail")
    def send() -> None: ...

    app.include(other)
    assert (app.tasks, send.clients) == ({"send": send}, app._clients)
    assert app.worker().topics == ["mail"]


@pytest.mark.memory
def test_what_cannot_be_a_task_is_refused():
    app = App()

    @app.task
    def fine() -> None: ...

    def generator():
        yield 1

    async def resource():
        return 1

    with pytest.raises(Invalid, match="task generator is a generator function"):
        app.task(generator)

    @wraps(resource)
    def wrapper():
        return resource()

    with pytest.raises(Invalid, match="is no function with a name"):
        app.task(5)
    with pytest.raises(Invalid, match="task App is no function"):
        app.task(App)
    with pytest.raises(Invalid, match="task resource is a coroutine function in a plain one"):
        app.task(wrapper)
    with pytest.raises(Invalid, match="async dependency"):

        @app.task
        def blocking(a: int = Depends(resource)) -> None: ...

    with pytest.raises(Invalid, match="the App has no tasks"):
        App().worker()


@pytest.mark.memory
def test_the_environment_names_the_service():
    environ = {"FOQS_ADDRESS": "h:1", "FOQS_NAMESPACE": "shop", "FOQS_TOKEN": "t", "FOQS_CLIENT_TLS": ""}
    app = App.from_env(environ, pool_size=3)
    made = app._clients
    assert (made.address, made.namespace, made.options) == ("h:1", "shop", {"token": "t", "pool_size": 3})
    assert App.from_env({})._clients.address == App()._clients.address
    given = App.from_env(environ, address="h:2", namespace="other", token=None)._clients
    assert (given.address, given.namespace, given.options) == ("h:2", "other", {"token": None})


@pytest.mark.memory
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"address": "nonsense:port:x"}, "address 'nonsense:port:x' is neither host:port nor an IPv6 address"),
        ({"address": "https://shop:7707"}, "an address of foqs is no URL"),
        ({"address": ","}, "no address given"),
        ({"address": 7707}, "address is of type int"),
        ({"namespace": ""}, "namespace is empty"),
        ({"token": ""}, "token is empty"),
        ({"token": b"t"}, "token is of type bytes"),
        ({"token": "@"}, "token: give the path of a file after @"),
        ({"tls": "yes"}, "tls: neither `on` nor a list of ca_file"),
        ({"tls": "key_file=/etc/key.pem"}, "tls: key_file needs cert_file"),
        ({"tls": True}, "tls is True (bool)"),
        ({"pool_size": -1}, "pool_size is -1"),
        ({"timeout_ms": None}, "timeout_ms"),
    ],
)
def test_arguments_of_an_app_that_can_never_work(options, why):
    with pytest.raises(Invalid, match=f"^{re.escape(why)}"):
        App(**options)


@pytest.mark.memory
def test_files_of_an_app_are_read_at_the_first_call():
    app = App("no-such-host.invalid", token="@/no/such/token", tls="ca_file=/no/such/ca.pem")
    with pytest.raises(Invalid, match="cannot read /no/such/"):
        app.client  # noqa: B018


@pytest.mark.threads
def test_event_loops_of_several_threads_begin_at_a_time():
    """While one of them looks for loops that were closed, another one begins, and looks as well."""
    app, others, begins = App("no-such-host.invalid"), [], False

    async def use() -> None:
        assert app.aclient is app.aclient

    class Loop(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            nonlocal begins
            if begins:
                begins = False
                with ThreadPoolExecutor(1) as threads:
                    others.append(threads.submit(asyncio.run, use()))
            return super().is_closed()

    closed = [Loop() for _ in range(3)]
    for loop in closed:
        loop.run_until_complete(use())
    for loop in closed:
        loop.close()
    begins = True
    asyncio.run(use())
    assert [other.result() for other in others] == [None]


@pytest.mark.threads
def test_a_lost_reply_stores_one_task(new_peer):
    """The request is repeated with the key of the call, which finds the item."""
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER))
    with App(peer.address, routing=False) as app:
        handle = app.task(name="t")(lambda: None).enqueue()
    keys = [item.dedup_key for request in peer.named("Enqueue") for item in request.items]
    assert len(keys) == 2 and len(set(keys)) == 1
    assert not handle.duplicate


@pytest.mark.threads
def test_a_task_in_order_is_not_enqueued_again_in_doubt(new_peer):
    peer = new_peer(script("Enqueue", refused(5), Act.CLOSE_AFTER))
    with App(peer.address, routing=False) as app, pytest.raises(OutcomeUnknown):
        app.task(name="t", order_key="k")(lambda: None).enqueue()
    assert [(item.order_key, item.dedup_key) for request in peer.named("Enqueue") for item in request.items] == [
        ("k", None)
    ] * 2


@pytest.mark.threads
@pytest.mark.parametrize("unique", [None, "k"])
def test_a_key_without_a_host_is_replaced(new_peer, monkeypatch, unique):
    """A random one is another one later; `unique` stays."""
    monkeypatch.setattr("foqs.tasks.clients.SLICE_MS", 50)
    peer = new_peer(
        lambda name, request: refused(5) if name == "Enqueue" and len(peer.named("Enqueue")) < 9 else Act.SERVE
    )
    with App(peer.address, routing=False) as app:
        handle = app.task(name="t")(lambda: None).options(unique=unique).enqueue()
    keys = [item.dedup_key for request in peer.named("Enqueue") for item in request.items]
    assert (len(set(keys)) > 1) == (unique is None)
    assert handle._key == (keys[-1] if unique is None else None), "a cancel would miss the item"


@pytest.mark.threads
@pytest.mark.parametrize("blocking", [True, False])
def test_the_log_names_the_time_of_the_whole_enqueue(new_peer, monkeypatch, caplog, blocking):
    monkeypatch.setattr("foqs.tasks.clients.SLICE_MS", 50)
    peer = new_peer(script("Enqueue", *[refused(5)] * 9))
    task = (app := App(peer.address, routing=False, timeout_ms=3_600_000)).task(name="t")(lambda: None)

    async def enqueue() -> None:
        async with app:
            await task.aenqueue()

    with app:
        task.enqueue() if blocking else asyncio.run(enqueue())
    (line,) = [text for record in caplog.records if "retrying for up to" in (text := record.getMessage())]
    assert float(line.partition("retrying for up to ")[2].split()[0]) > 3_000


@pytest.mark.threads
def test_a_key_in_doubt_is_not_replaced(new_peer, monkeypatch):
    """The first request has stored the task, and its reply was lost; then the host is away for a while."""
    monkeypatch.setattr("foqs.tasks.clients.SLICE_MS", 50)
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER, *[refused(5)] * 9))
    with App(peer.address, routing=False) as app:
        app.task(name="t")(lambda: None).enqueue()
    assert len(peer.items) == 1


@pytest.mark.threads
def test_a_doubt_that_stays_is_an_unknown_outcome(new_peer):
    peer = new_peer(script("Enqueue", Act.CLOSE_AFTER, *[refused(5)] * 999))
    with App(peer.address, routing=False, timeout_ms=300) as app, pytest.raises(OutcomeUnknown):
        app.task(name="t")(lambda: None).enqueue()


@pytest.mark.threads
def test_many_calls_have_each_its_outcome(new_peer):
    peer = new_peer()
    with App(peer.address, routing=False) as app:
        task = app.task(name="t")(lambda a: None)
        handles = app.enqueue_many([task.message(1), Message(task, ItemSpec("", b"", dedup_key="k")), task.message(3)])
        assert [type(one).__name__ for one in handles] == ["Handle", "Invalid", "Handle"]
    assert len(peer.named("Enqueue")) == 1


PROGRAM = """
import foqs
from datetime import timedelta
from typing import Annotated, assert_type

from foqs import App, Call, Depends, Job

app = App()


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(topic="mail", time_limit=60, max_attempts=5)
async def send(to: str, *, subject: str, smtp: str = Depends(lambda: "smtp")) -> str:
    return to


@app.task(topic="mail")
def count(job: Job, upto: int) -> None:
    job.progress(1, upto)


def picture(path: str, width: int = 100) -> None: ...


@app.task(topic="resize", batch=100, arguments=picture)
def resize(calls: list[Call]) -> list[bytes]:
    return [b"" for call in calls]


@app.task(topic="index", batch=100, batch_wait=timedelta(seconds=1))
async def index(calls: list[Call]) -> None: ...


@app.periodic("*/5 * * * *", timezone="Europe/Berlin", catch_up="last")
@app.task(topic="refresh")
async def refresh(full: bool = False) -> int: return 1


@app.periodic("@every 10s")
def poll() -> str: return ""


@app.periodic("@every 10s", catch_up="some")  # refused
def wrong_catch_up() -> None: ...


@app.task(topic="one", batch=100)  # refused
def one_call(call: Call) -> None: ...


async def uses() -> None:
    resized: bytes = resize.enqueue("a.png", width=3).result()
    index.enqueue("anything", fits=True)
    size: int = await refresh(full=True)
    polled: str = poll.enqueue().result()
    resize.enqueue(3)  # refused
    resize.enqueue("a.png", height=3)  # refused
    number: int = add.enqueue(1).result()
    text: str = await (await send.aenqueue("ada", subject="hi")).aresult(timeout=30)
    nothing: None = count.enqueue(3).result()
    plain: int = add(1, b=3)
    awaited: str = await send("ada", subject="hi")
    again: int = add.handle(7).result()
    later: int = add.options(delay=timedelta(minutes=5)).enqueue(1).result()
    app.enqueue_many([add.message(1), send.message("ada", subject="hi")])
    add.options(dely=timedelta(1))  # refused
    add.options(delay=3)  # refused
    add.enqueue("1")  # refused
    add.enqueue()  # refused
    add.enqueue(1, c=3)  # refused
    send.enqueue("ada")  # refused
    await send.aenqueue("ada", "hi")  # refused
    count.enqueue("3")  # refused
    add("1")  # refused
    wrong: str = add.enqueue(1).result()  # refused
    other: int = await (await send.aenqueue("ada", subject="hi")).aresult()  # refused
    number, text, nothing, plain, awaited, again, later, wrong, other, resized, size, polled


@app.task
async def show(total: int, bold: bool = False) -> str: return ""


@app.task
def say(job: Job, given: str) -> None:
    assert_type(job.batch, foqs.ItemBatch | None)
    assert_type(job.batch_end, foqs.BatchEnd | None)


@app.task
def no_argument() -> bytes: return b""


async def chains_and_batches() -> None:
    assert_type(add.then(show).enqueue(1, b=2), foqs.Handle[int])
    assert_type(await add.then(show.options(priority=3)).then(say).then(no_argument).aenqueue(1), foqs.Handle[int])
    add.then(resize)  # refused
    add.then(no_argument)  # refused
    say.then(add)  # refused
    add.then(show.message(3))  # refused
    add.then(show.then(say))  # refused
    add.then(show).enqueue("1")  # refused
    add.then(show).then(add)  # refused
    with app.batch(on_success=show.message(3), on_end=add.then(show).message(1), ttl=timedelta(days=1)) as batch:
        assert_type(batch, foqs.ItemBatch)
        assert_type(batch.add(add, 1, b=3), foqs.Handle[int])
        assert_type(batch.add(add.then(show), 1), foqs.Handle[int])
        assert_type(await batch.aadd(show, 1, bold=True), foqs.Handle[str])
        batch.add(say, "x")
        batch.add(resize, "a.png", width=3)
        batch.add(add, "1")  # refused
        batch.add(show, 1, bolt=True)  # refused
        batch.add_many([add.message(1), show.message(2)])
        add.options(batch=batch).enqueue(1)
        completed: int = batch.wait(timeout=3).counts.completed
    async with app.batch(parent=batch) as other:
        other.add(add, completed)
    app.batch(on_end=show)  # refused
    add.options(batch=3)  # refused


class Upper(foqs.JsonCodec):
    content_type = "text/x-upper"


foqs.App(codec=foqs.OffloadCodec("s3://bodies", inner=foqs.EncryptedCodec({"a": b"key"}, foqs.MsgpackCodec())))
foqs.App(codec=[Upper(), foqs.JsonCodec()])
foqs.App(codec="json")  # refused
foqs.App(codec=foqs.JsonCodec)  # refused
foqs.EncryptedCodec({"a": "key"})  # refused
"""


@pytest.mark.process
def test_a_type_checker_knows_the_signature_of_a_task(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", str(program)]
    environment = {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LATER * 10)
    found = {line.split(":")[1] for line in ended.stdout.splitlines() if f"{program}:" in line and ": error" in line}
    expected = {str(number) for number, line in enumerate(PROGRAM.split("\n"), 1) if line.endswith("# refused")}
    assert found == expected, ended.stdout + ended.stderr
