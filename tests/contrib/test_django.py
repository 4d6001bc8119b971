"""Django's tasks on a service in memory: the interface of the backend, results, failures and signals."""

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings
from django.utils import timezone

from foqs import EncryptedCodec, OffloadCodec
from foqs.client import Client, Extension, Forbidden, Invalid, ItemRules, ItemSpec, ItemState, RetryKind, RetryRule
from foqs.contrib.django.interface import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from foqs.contrib.django.record import Attempt, packed, unpacked
from foqs.contrib.django.results import UNKNOWN
from tests.client.peer import LATER
from tests.contrib.shop import tasks

pytestmark = pytest.mark.threads
RULE = RetryRule(RetryKind.CONSTANT, first_ms=60_000, jitter=0.0)
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@pytest.fixture
def heard():
    """The signals of the interface, with the status at that time."""
    calls = []
    hear = {
        name: (lambda sender, task_result, name=name, **_: calls.append((name, task_result.status, task_result.id)))
        for name in ("task_enqueued", "task_started", "task_finished")
    }
    for name, receiver in hear.items():
        getattr(signals, name).connect(receiver)
    yield calls
    for name, receiver in hear.items():
        getattr(signals, name).disconnect(receiver)


# ------------------------------------------------------------------------------------------------ a call


def test_a_call_runs_and_keeps_its_result(backend, run):
    before = timezone.now()
    result = tasks.add.enqueue(2, other=3)
    assert (result.status, result.args, result.kwargs, result.attempts) == (READY, [2], {"other": 3}, 0)
    assert before <= result.enqueued_at <= timezone.now()
    assert tasks.add.get_result(result.id) == result
    assert run() == 1
    result.refresh()
    assert (result.status, result.return_value, result.attempts, result.errors) == (SUCCESSFUL, 5, 1, [])
    assert result.last_attempted_at == result.started_at <= result.finished_at <= timezone.now()
    assert len(result.worker_ids) == 1
    assert 1 <= len(result.id) <= 64


def test_coroutines_use_the_client_of_their_loop(backend, monkeypatch):
    monkeypatch.setattr(type(backend.app), "client", property(lambda app: pytest.fail("a blocking call")))

    async def main():
        result = await tasks.aadd.aenqueue(2, other=3)
        assert result == await tasks.aadd.aget_result(result.id)
        await backend.worker(wait_ms=0).arun_until_empty()
        await result.arefresh()
        with pytest.raises(TaskResultDoesNotExist):
            await backend.aget_result("7")
        return result

    result = asyncio.run(main())
    assert (result.status, result.return_value, result.task.queue_name, result.task.priority) == (
        SUCCESSFUL,
        5,
        "mail",
        7,
    )


def test_arguments_are_as_they_were_given(backend, run):
    """Also by the names of parameters that a worker has."""
    one = tasks.attempt.enqueue([1, {"two": None}], kwargs={"a": (1, b"x")}, job="Zoë")
    run()
    one.refresh()
    assert one.return_value == [1, [1, {"two": None}], {"a": [1, "x"]}, "Zoë"]
    assert one.args == [[1, {"two": None}]]
    named = tasks.starts.enqueue(run=5)  # as the function that a worker calls in its place
    run()
    named.refresh()
    assert (named.return_value, named.kwargs) == (5, {"run": 5})


@pytest.mark.parametrize("wrong", [object(), {1}, len, b"\xff", float("nan")], ids=lambda one: type(one).__name__)
def test_arguments_that_are_no_json_are_refused(backend, foqs_server, heard, wrong):
    with pytest.raises((TypeError, ValueError, Invalid)):
        tasks.returns.enqueue(wrong)
    assert foqs_server.items("default", "shop") == heard == []


def test_the_urgent_call_is_first(backend, run):
    """100 is the most urgent one."""
    tasks.ran.clear()
    given = [0, -100, 100, 1, -1]
    for priority in given:
        tasks.attempt.using(priority=priority).enqueue()
    assert backend.worker(concurrency=1, wait_ms=0).run_until_empty() == 5
    assert [one.task.priority for one in tasks.ran] == sorted(given, reverse=True)


def test_a_call_waits_until_its_time(backend, foqs_server, run):
    at = foqs_server.now + timedelta(hours=1)
    result = tasks.fails_once.using(run_after=at).enqueue()
    past = tasks.add.using(run_after=foqs_server.now - timedelta(days=1)).enqueue(1)
    assert [run(), run(minutes=59), run(minutes=1)] == [1, 0, 1]
    for one in (result, past):
        one.refresh()
        assert one == backend.get_result(one.id)
    assert (result.status, past.status, result.task.run_after) == (
        READY,
        SUCCESSFUL,
        at,
    )  # though the item has moved on


def test_without_time_zones_times_are_naive(backend, foqs_server, run):
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        at = timezone.make_naive(foqs_server.now + timedelta(hours=1))
        result = tasks.add.using(run_after=at).enqueue(1)
        assert [run(minutes=59), run(minutes=1)] == [0, 1]
        result.refresh()
        times = [result.enqueued_at, result.started_at, result.finished_at, result.last_attempted_at]
        assert all(timezone.is_naive(time) for time in times)
        assert abs(times[0] - datetime.now()) < timedelta(hours=1)  # noqa: DTZ005
        assert result.task.run_after == at


def test_a_task_that_no_worker_would_find_is_refused(backend):
    nameless = type(tasks.add)(func=tasks.returns.func)
    nameless.func.__qualname__, before = "other", nameless.func.__qualname__
    try:
        with pytest.raises(InvalidTask, match="no worker would find"):
            nameless.enqueue(1)
    finally:
        nameless.func.__qualname__ = before


def test_changed_options_make_another_app(backend):
    first = backend.app
    assert backend.app is first
    backend.options["namespace"] = "second"
    assert (first.namespace, backend.app.namespace) == ("shop", "second")


@pytest.mark.parametrize("queue", ["nowhere", ""])
def test_a_queue_that_the_settings_lack_is_refused(backend, queue):
    with pytest.raises(InvalidTask, match="is not valid for backend"):
        tasks.add.using(queue_name=queue).enqueue(1)


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("task", [tasks.fails, tasks.afails], ids=["thread", "loop"])
@pytest.mark.parametrize("kind", ["ValueError", "SystemExit", "KeyboardInterrupt"])
def test_what_a_task_raises_is_kept(configured, foqs_server, task, kind):
    backend = configured(foqs_server, max_attempts=2, retry=RULE)
    result = task.enqueue("no such user", kind)
    assert backend.worker().run_until_empty() == 1
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    foqs_server.advance(minutes=1)
    assert backend.worker().run_until_empty() == 1
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 2, 2)
    assert {one.exception_class.__name__ for one in result.errors} == {kind}
    assert all(one.traceback.endswith(f"{kind}: no such user\n") for one in result.errors)
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


@pytest.mark.parametrize(
    ("task", "args", "kind"),
    [(tasks.no_json, (), TypeError), (tasks.large, (70_000,), Invalid), (tasks.add, ("too", "many", 1), TypeError)],
    ids=["no JSON", "too large", "wrong arguments"],
)
def test_a_run_without_a_result_to_keep_has_failed(configured, foqs_server, task, args, kind):
    backend = configured(foqs_server, max_attempts=1)
    result = task.enqueue(*args)
    backend.worker().run_until_empty()
    result.refresh()
    assert (result.status, [one.exception_class for one in result.errors]) == (FAILED, [kind])


def test_a_large_result_leaves_no_room_for_the_tracebacks(backend, run):
    result = tasks.fails_once.enqueue()
    run()
    item = backend.app.client.get_item(result.id)
    attempts = unpacked(json.loads(item.checkpoint))
    body = packed(attempts, 200, lambda said: json.dumps(said).encode(), return_value=80 * "x")
    assert json.loads(body)["return_value"] == 80 * "x"
    assert len(body) <= 200
    run(hours=1)
    result.refresh()
    assert (result.return_value, len(result.errors), result.attempts) == (2, 1, 2)


def test_the_oldest_tracebacks_go_first():
    attempts = [Attempt(n, "w", n, n, "builtins.ValueError", f"{n}" + 1_000 * "x") for n in range(200)]
    encode = partial(json.dumps, separators=(",", ":"))
    kept = unpacked(json.loads(packed(attempts, 20_000, lambda said: encode(said).encode())))
    assert [one.at_ms for one in kept] == list(range(100, 200))
    assert [bool(one.traceback) for one in kept] == sorted(bool(one.traceback) for one in kept)
    assert kept[-1] == attempts[-1]


@pytest.mark.parametrize(
    "said", [None, [], {}, {"attempts": 1}, {"attempts": [[1]]}, {"attempts": [["x", "w", 0, 0, "", ""]]}, "x"]
)
def test_a_record_of_another_client_is_none(said):
    assert unpacked(said) == []


def test_retry_and_reject(configured, foqs_server, heard):
    backend = configured(foqs_server, max_attempts=5)
    rejected, counted, uncounted = tasks.rejects.enqueue(), tasks.retries.enqueue(True), tasks.retries.enqueue(False)
    backend.worker().run_until_empty()
    rejected.refresh()
    assert (rejected.status, rejected.errors[0].exception_class.__name__) == (FAILED, "Reject")
    foqs_server.advance(seconds=1)
    backend.worker().run_until_empty()
    for one in (counted, uncounted):
        one.refresh()
        assert (one.status, one.errors, one.attempts, one.return_value) == (SUCCESSFUL, [], 2, 2)
    assert [status for name, status, result_id in heard if name == "task_finished" and result_id == rejected.id] == [
        FAILED
    ]


def test_a_retry_at_the_last_attempt_has_failed(configured, foqs_server, heard):
    """After its delay, without another run."""
    backend = configured(foqs_server, max_attempts=1)
    result = tasks.retries.enqueue(True)
    backend.worker().run_until_empty()
    result.refresh()
    assert (result.status, heard[-1]) == (READY, ("task_started", RUNNING, result.id))
    foqs_server.advance(seconds=1)
    assert backend.worker().run_until_empty() == 0
    result.refresh()
    assert (result.status, [one.exception_class.__name__ for one in result.errors]) == (FAILED, ["TaskFailed"])
    assert "it was to run again, and has no attempt left" in result.errors[0].traceback


def test_the_policy_of_the_topic_counts_without_an_option(backend, run, heard):
    backend.app.client.put_settings({"topic.default": json.dumps({"max_attempts": 1})})
    result = tasks.fails.enqueue("x")
    run()
    result.refresh()
    assert result.status == FAILED
    assert heard[-1] == ("task_finished", FAILED, result.id)


def test_a_redriven_task_is_ready_again(configured, foqs_server):
    backend = configured(foqs_server, max_attempts=1)
    result = tasks.fails_once.enqueue()
    backend.worker().run_until_empty()
    assert backend.get_result(result.id).status == FAILED
    backend.app.client.redrive("default.dlq")
    result.refresh()
    assert (result.status, result.attempts, result.task.queue_name) == (READY, 1, "default")
    backend.worker().run_until_empty()
    result.refresh()
    assert (result.status, result.return_value, len(result.errors)) == (SUCCESSFUL, 2, 1)


# ------------------------------------------------------------------------------------------------ results


def test_a_running_task_shows_its_start(backend, foqs_server, tmp_path):
    async def main():
        result = await tasks.awaits.aenqueue(str(tmp_path / "gate"))
        work = asyncio.create_task(backend.worker().arun_until_empty())
        async with asyncio.timeout(LATER):
            while not (await backend.aget_result(result.id)).started_at:
                await asyncio.sleep(0.01)
                foqs_server.advance(ms=10)  # the service writes it within a second
        await result.arefresh()
        (tmp_path / "gate").touch()
        await work
        return result, await backend.aget_result(result.id)

    running, ended = asyncio.run(main())
    assert (running.status, running.attempts, running.finished_at) == (RUNNING, 1, None)
    assert (ended.status, ended.worker_ids, ended.started_at) == (SUCCESSFUL, running.worker_ids, running.started_at)


def test_an_attempt_without_a_record_counts(configured, foqs_server):
    """Its worker was killed at once."""
    backend = configured(foqs_server, max_attempts=2, retry=RULE)
    result = tasks.fails.enqueue("x")
    backend.app.client.dequeue("default", lease_ms=1_000)
    result.refresh()
    assert (result.status, result.worker_ids, result.started_at) == (RUNNING, [UNKNOWN], None)
    foqs_server.advance(seconds=1)
    result.refresh()
    assert (result.status, result.attempts) == (READY, 1)
    foqs_server.advance(minutes=1)
    backend.worker().run_until_empty()
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids[0], len(result.errors)) == (FAILED, 2, UNKNOWN, 1)


def test_a_task_whose_last_worker_died_has_failed(configured, foqs_server):
    backend = configured(foqs_server, max_attempts=1)
    result = tasks.add.enqueue(1)
    backend.app.client.dequeue("default", lease_ms=1_000)
    foqs_server.advance(seconds=1)
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)
    assert result.finished_at is not None
    (error,) = result.errors
    assert error.exception_class.__name__ == "TaskFailed"
    assert "its worker has died" in error.traceback


def test_a_result_is_kept_for_its_time(configured, foqs_server):
    backend = configured(foqs_server, keep=timedelta(minutes=1))
    result = tasks.add.enqueue(1)
    backend.worker().run_until_empty()
    foqs_server.advance(ms=59_999)
    result.refresh()
    foqs_server.advance(ms=1)
    with pytest.raises(TaskResultDoesNotExist, match=result.id):
        result.refresh()


@pytest.mark.parametrize(
    "wrong", ["", "7", "-1", "0", "007", " 7", "0x7", "abc", "٣", "9" * 19, "9" * 64, "é" * 64, 7, None], ids=repr
)
def test_no_id_of_a_task(backend, wrong):
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(wrong)


def test_an_item_of_no_task_here(backend, foqs_server):
    with Client(foqs_server.address, "elsewhere") as other:
        specs = [ItemSpec("t", b"", headers={"foqs-task": name}) for name in (tasks.add.module_path, "other.task")]
        ids = [other.enqueue("t", b""), *other.enqueue_many(specs)]
        ids += backend.app.client.enqueue_many([ItemSpec("t", b"x"), specs[1]])
    for item_id in ids:
        with pytest.raises(TaskResultDoesNotExist, match=str(item_id)):
            backend.get_result(str(item_id))


def test_a_call_of_another_client(backend, run):
    """It has neither the headers of the backend, nor a priority that Django knows."""
    headers = {"foqs-task": tasks.add.module_path, "django-run-after": "tomorrow"}
    rules, payload = ItemRules(keep_ms=60_000), b'{"args": [4], "kwargs": {}}'
    item_id = backend.app.client.enqueue("default", payload, headers=headers, priority=5_000, rules=rules)
    run()
    result = backend.get_result(str(item_id))
    assert (result.return_value, result.task.priority, result.task.run_after) == (5, 0, None)
    assert result.enqueued_at.tzinfo is UTC


def test_a_result_of_another_client(backend):
    result = tasks.add.enqueue(1)
    (item,) = backend.app.client.dequeue("default")
    backend.app.client.ack(item, result=b"17")
    result.refresh()
    assert (result.status, result.return_value, result.worker_ids) == (SUCCESSFUL, 17, [UNKNOWN])


def test_encrypted_arguments_results_and_errors(configured, foqs_server):
    backend = configured(foqs_server, max_attempts=1, codec=EncryptedCodec({"k": 16 * b"k"}))
    results = [tasks.returns.enqueue("a secret"), tasks.fails.enqueue("a secret")]
    assert "secret" not in repr([item.payload for item in foqs_server.items("default", "shop")])
    backend.worker().run_until_empty()
    items = [backend.app.client.get_item(one.id) for one in results]
    assert "secret" not in repr([(one.payload, one.result, one.checkpoint) for one in items])
    for one in results:
        one.refresh()
    assert (results[0].return_value, results[1].args) == ("a secret", ["a secret"])
    assert results[1].errors[0].traceback.endswith("ValueError: a secret\n")


def test_large_values_in_a_store(configured, foqs_server, tmp_path):
    backend = configured(foqs_server, max_attempts=1, codec=OffloadCodec(f"file://{tmp_path}", over_bytes=1_000))

    async def main():
        results = [await tasks.large.aenqueue(100_000), await tasks.afails.aenqueue(5_000 * "x")]
        await backend.worker().arun_until_empty()
        return [await backend.aget_result(one.id) for one in results]

    large, failed = asyncio.run(main())
    assert len(large.return_value) == 100_000
    assert failed.errors[0].traceback.endswith("xx\n")


def test_results_need_the_right_admin(backend, monkeypatch):
    def forbidden(item_id):
        raise Forbidden("the right admin is missing")

    result = tasks.add.enqueue(1)
    monkeypatch.setattr(backend.app.client, "get_item", forbidden)
    with pytest.raises(Forbidden):
        result.refresh()


# ------------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["thread", "loop"])
def test_signals(backend, run, heard, task):
    result = task.enqueue(1)
    run()
    assert heard == [
        ("task_enqueued", READY, result.id),
        ("task_started", RUNNING, result.id),
        ("task_finished", SUCCESSFUL, result.id),
    ]


def test_a_failure_that_is_tried_again_is_no_end(backend, run, heard):
    tasks.fails_once.enqueue()
    assert [run(), run(hours=1)] == [1, 1]
    assert [name for name, *_ in heard] == ["task_enqueued", "task_started", "task_started", "task_finished"]


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["thread", "loop"])
def test_a_receiver_that_fails_does_not_fail_the_run(backend, run, task):
    def broken(**_):
        raise ValueError("of the receiver")

    result = task.enqueue(1)
    for signal in (signals.task_started, signals.task_finished):
        signal.connect(broken)
    try:
        run()
    finally:
        for signal in (signals.task_started, signals.task_finished):
            signal.disconnect(broken)
    result.refresh()
    assert result.status == SUCCESSFUL


# ------------------------------------------------------------------------------------------------ workers


@pytest.mark.parametrize(
    "path",
    ["antigravity.geohash", "os.system", "tests.contrib.shop.tasks.renamed", "tests.contrib.shop.tasks.not_a_task",
     "tests.contrib.shop.tasks.add.func", "", "tests.contrib.shop.tasks", "..", "builtins.eval"],
)  # fmt: skip
def test_a_path_reaches_tasks_alone(backend, foqs_server, run, path):
    backend.app.client.put_settings({"topic.default": json.dumps({"max_attempts": 1})})
    headers = {"foqs-task": path} if path else None
    item_id = backend.app.client.enqueue("default", b'{"args": ["true"], "kwargs": {}}', headers=headers)
    assert run() == 1
    (dead,) = foqs_server.items("default.dlq", "shop")
    assert dead.id == item_id
    assert "is not registered in this worker" in dead.failure.reason or not path
    assert "antigravity" not in __import__("sys").modules


def test_each_run_has_fresh_connections(backend):
    """No run finds the connection of an earlier run of its thread."""
    results = [tasks.query.enqueue() for _ in range(4)]
    assert backend.worker(concurrency=1, wait_ms=0).run_until_empty() == 4
    for one in results:
        one.refresh()
        assert one.return_value[0] == 1
    assert [one.return_value[2] for one in results] == [False] * 4


def test_a_coroutine_may_use_the_database(backend, run):
    result = tasks.aquery.enqueue()
    assert run() == 1
    result.refresh()
    assert result.return_value == 1


def test_all_threads_share_one_app(backend):
    apps = [backend.app]
    threads = [threading.Thread(target=lambda: apps.append(task_backends["default"].app)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(apps) == 5
    assert len(set(map(id, apps))) == 1
    assert task_backends["other"].app is not backend.app


def test_settings_that_change_in_place_make_another_app(backend):
    assert backend.app.namespace == "shop"
    backend.options["namespace"] = "other"
    assert backend.app.namespace == "other"


def test_threads_with_other_settings_take_no_app_away(backend, monkeypatch):
    class Contended(dict):
        def setdefault(self, key, default):
            """Another thread removes it at once."""
            super().setdefault(key, default)
            return self.pop(key)

    monkeypatch.setattr("foqs.contrib.django.backend._apps", Contended())
    assert backend.app.namespace == "shop"


@pytest.mark.parametrize(
    "checkpoint", [b"", b"raw", b"\xff", b"\x01\x03x/y", b'{"attempts": [[1, "w", 1e17, 0, "", ""]]}']
)
def test_a_checkpoint_of_another_client(backend, run, checkpoint):
    result = tasks.add.enqueue(1)
    (item,) = backend.app.client.dequeue("default")
    assert backend.app.client.extend_many([Extension(item.id, item.lease, checkpoint=checkpoint)]) == [None]
    backend.app.client.nack(item)
    result.refresh()
    assert (result.status, result.worker_ids) == (READY, [UNKNOWN])
    run(hours=1)
    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, 2)


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adress": "x:1"}, "OPTIONS has no option adress"),
        ({"address": "x:y"}, "address 'x:y' is not host:port"),
        ({"namespace": ""}, "namespace is empty"),
        ({"tls": True}, "tls is True"),
        ({"token": 7}, "token is of type int"),
        ({"timeout_ms": "1"}, "timeout_ms is of type str"),
        ({"codec": "json"}, "codec has"),
        ({"keep": 60}, "keep is 60: give a timedelta"),
        ({"max_attempts": "5"}, "max_attempts is '5': give a int"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"retry": {"kind": "constant"}}, "give a RetryRule"),
    ],
)
def test_wrong_options_are_errors_of_the_system_check(configured, foqs_server, options, words):
    backend = configured(foqs_server, **options)
    (error,) = backend.check()
    assert (error.id, words in error.msg) == ("foqs.E001", True), error.msg
    assert error.msg.startswith("TASKS['default']: ")
    with pytest.raises(SystemCheckError, match=r"foqs\.E001"):
        call_command("check")
    with pytest.raises((Invalid, InvalidTaskBackend)):
        tasks.add.enqueue(1)


@pytest.mark.parametrize("queue", ["", 7])
def test_a_wrong_queue_is_an_error_of_the_system_check(configured, foqs_server, queue):
    (error,) = configured(foqs_server, queues=["default", queue]).check()
    assert f"QUEUES has {queue!r}" in error.msg


def test_a_right_project_has_no_errors(backend, capsys):
    assert backend.check() == []
    call_command("check")
    assert "no issues" in capsys.readouterr().out


def test_the_environment_is_the_default(configured, foqs_server, monkeypatch):
    monkeypatch.setenv("FOQS_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("FOQS_NAMESPACE", "of the environment")
    monkeypatch.setenv("FOQS_TOKEN", "of the environment")
    backend = configured(foqs_server, token="mine")
    assert (backend.app.address, backend.app.options) == (foqs_server.address, {"token": "mine"})
    with override_settings(TASKS={"default": {"BACKEND": "foqs.contrib.django.FoqsBackend"}}):
        app = task_backends["default"].app
        assert (app.address, app.namespace, app.options) == (
            "127.0.0.1:9", "of the environment", {"token": "of the environment"}
        )  # fmt: skip


def test_items_say_where_they_belong(backend, foqs_server):
    tasks.aadd.enqueue(1)
    (item,) = foqs_server.items("mail", "shop")
    assert (item.state, item.priority, item.headers["foqs-task"]) == (ItemState.READY, -7, tasks.aadd.module_path)
    assert item.rules.keep_ms == 86_400_000
