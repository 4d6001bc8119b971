"""What a project hears of a mistake: in its settings, in a call, and in the log of a worker."""

import asyncio
import logging
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings
from django.utils import timezone

from foqs.client import Invalid, RetryKind, RetryRule
from foqs.contrib.django.backend import _with_options
from foqs.contrib.django.interface import InvalidTask, InvalidTaskBackend, TaskResultStatus, task_backends
from tests.client.peer import logged_tracebacks
from tests.contrib.shop import tasks

pytestmark = pytest.mark.threads
BACKEND = "foqs.contrib.django.FoqsBackend"


@pytest.mark.parametrize("options", [[], None, "x", [("token", "secret")]])
def test_options_that_are_no_dict(options):
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        backend = task_backends["default"]
        (error,) = backend.check()
        assert error.id == "foqs.E001"
        assert error.msg == f"TASKS['default']: OPTIONS is of type {type(options).__name__}: give a dict"
        with pytest.raises(SystemCheckError, match=r"foqs\.E001"):
            call_command("check")
        for use in (lambda: backend.app, lambda: tasks.add.enqueue(1), lambda: backend.get_result("7"), backend.worker):
            with pytest.raises(InvalidTaskBackend, match="OPTIONS is of type"):
                use()


@pytest.mark.parametrize("queues", ["mail", b"mail", None, 7])
def test_queues_that_are_no_list(foqs_server, queues):
    """The letters of a text are no topics."""
    options = {"address": foqs_server.address}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": queues, "OPTIONS": options}}):
        (error,) = task_backends["default"].check()
        assert error.id == "foqs.E001"
        assert error.msg == f"TASKS['default']: QUEUES is of type {type(queues).__name__}: give a list of topics"
        with pytest.raises(InvalidTaskBackend, match="QUEUES is of type"):
            tasks.add.enqueue(1)


@pytest.mark.parametrize(
    ("name", "near"), [("adress", "address"), ("kep", "keep"), ("max_attempt", "max_attempts"), ("zzz", ""), (7, "")]
)
def test_an_unknown_option(configured, foqs_server, name, near):
    backend = configured(foqs_server)
    backend.options = {name: 1}
    (error,) = backend.check()
    assert error.msg.startswith(f"TASKS['default']: OPTIONS has no option {name}: there are address, namespace, ")
    known = error.msg.partition("there are ")[2].partition(";")[0].split(", ")
    assert {"codec", "keep", "max_attempts", "retry", "tls", "token"} <= set(known)
    assert len(known) == len(set(known))
    assert error.msg.endswith(f"; did you mean {near}?") if near else "did you mean" not in error.msg


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": timedelta(-1)}, "keep is -86400000: "),
        ({"max_attempts": -1}, "max_attempts is -1: "),
        ({"retry": RetryRule(RetryKind.CONSTANT, first_ms=-1)}, "retry.first_ms is -1: "),
    ],
)
def test_an_error_names_the_option(configured, foqs_server, options, words):
    backend = configured(foqs_server, **options)
    (error,) = backend.check()
    assert error.msg.startswith(f"TASKS['default']: {words}")
    with pytest.raises(Invalid) as raised:
        tasks.add.enqueue(1)
    assert raised.value.message.startswith(f"task {tasks.add.module_path}: {words}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": timedelta(days=4_000)}, "keep is "),
        ({"retry": RetryRule(RetryKind.CONSTANT, first_ms=10**15)}, "retry.first_ms: "),
    ],
)
def test_an_error_of_the_service_names_the_option(configured, foqs_server, options, words):
    configured(foqs_server, **options)
    for call in (lambda: tasks.add.enqueue(1), lambda: asyncio.run(tasks.add.aenqueue(1))):
        with pytest.raises(Invalid) as raised:
            call()
        assert raised.value.message.startswith(words)


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("", "QUEUES has '', which is empty"),
        (7, "QUEUES has 7, which is of type int"),
        (300 * "x", "which has 300 bytes: it must be text of 1 to 255 bytes"),
        (128 * "é", "which has 256 bytes"),
        ("a\nb", r"QUEUES has 'a\nb', which holds a control character"),
        ("\ud800", r"QUEUES has '\ud800', which is not valid Unicode"),
    ],
)
def test_a_queue_that_is_no_topic(configured, foqs_server, queue, words):
    """Each one is an error of its own."""
    errors = configured(foqs_server, queues=["default", queue, ""]).check()
    assert {error.id for error in errors} == {"foqs.E001"}
    assert len(errors) == len({queue, ""})
    assert any(words in error.msg for error in errors), errors


@pytest.mark.parametrize("queue", ["mail.dlq", 255 * "x", "é ü"])
def test_a_queue_that_workers_take(configured, foqs_server, queue):
    backend = configured(foqs_server, queues=[queue])
    assert backend.check() == []
    tasks.add.using(queue_name=queue).enqueue(1)
    assert backend.worker(wait_ms=0).run_until_empty() == 1


@pytest.mark.parametrize(("days", "most"), [(800, "366 days from now"), (1_500_000, "the year 5000")])
def test_a_time_too_far_ahead(backend, foqs_server, days, most):
    at = foqs_server.now + timedelta(days=days)
    late = tasks.add.using(run_after=at)
    for call in (lambda: late.enqueue(1), lambda: asyncio.run(late.aenqueue(1))):
        with pytest.raises(InvalidTask) as raised:
            call()
        assert str(raised.value) == f"run_after is {at.isoformat()}: the service takes times up to {most}"


def test_the_path_of_a_task_is_no_field():
    text = "task shop.rules.keep.add: rules.retry_rule.first_ms: it must be 5 or less"
    assert _with_options(text) == "task shop.rules.keep.add: retry.first_ms: it must be 5 or less"


def test_the_bound_of_another_service(backend, monkeypatch):
    def refuse(self, spec):
        raise Invalid("deliver_after_ms is 7, more than 5400000 ms ahead")

    monkeypatch.setattr("foqs.tasks.clients.Clients.enqueue", refuse)
    with pytest.raises(InvalidTask, match="takes times up to 1:30:00 from now"):
        tasks.add.using(run_after=timezone.now()).enqueue(1)


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("headers", "payload", "words"),
    [
        ({"foqs-task": "extra.tasks.hello"}, b'{"args": [], "kwargs": {}}',
         "the task extra.tasks.hello is not registered in this worker: is its app in INSTALLED_APPS, or its module "
         "imported?"),
        (None, b"{}", "the item has no header foqs-task"),
        ({"foqs-task": tasks.add.module_path}, b"junk", "the payload is not the JSON"),
    ],
    ids=["unknown", "no task", "no JSON"],
)  # fmt: skip
def test_an_item_that_no_task_takes_is_one_line_of_the_log(backend, foqs_server, run, caplog, headers, payload, words):
    item_id = backend.app.client.enqueue("default", payload, headers=headers)
    assert run() == 1
    (line,) = lines(caplog)
    assert f"Item({item_id} topic='default'" in line
    assert words in line
    assert "\n" not in line
    assert logged_tracebacks(caplog) == ""
    (item,) = foqs_server.items("default", "shop")
    assert item.attempt == 1


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["thread", "loop"])
def test_arguments_that_do_not_fit_are_one_line_of_the_log(configured, foqs_server, caplog, task):
    caplog.set_level(logging.ERROR, "foqs")
    backend = configured(foqs_server, max_attempts=2)
    result = task.enqueue("too", "many", 1)
    assert backend.worker().run_until_empty() == 1
    (line,) = lines(caplog)
    assert "takes from 1 to 2 positional arguments but 3 were given" in line
    assert logged_tracebacks(caplog) == ""
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (TaskResultStatus.READY, TypeError)


def test_a_type_error_of_the_function_keeps_its_traceback(backend, run, caplog):
    tasks.add.enqueue("x")
    assert run() == 1
    assert "one + other" in logged_tracebacks(caplog)


def test_a_killed_attempt_before_a_success_is_no_error(configured, foqs_server):
    backend = configured(foqs_server, max_attempts=2, retry=RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0.0))
    result = tasks.add.enqueue(1)
    backend.app.client.dequeue("default", lease_ms=1_000)
    foqs_server.advance(seconds=2)
    assert backend.worker(wait_ms=0).run_until_empty() == 1
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 2, [])
