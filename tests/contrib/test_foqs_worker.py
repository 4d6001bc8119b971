"""`manage.py foqs_worker`: its processes, on a real host."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from foqs.cli.worker import worker as foqs_worker
from foqs.contrib.django.interface import TaskResultStatus, task_backends
from foqs.contrib.django.management.commands import foqs_worker as command
from tests.api.hosts import environment, until
from tests.client.peer import LATER
from tests.client.real_server import Server
from tests.contrib.shop import tasks

ROOT = Path(__file__).parents[2]


class Worker:
    """A running `python -m django foqs_worker`, in a folder of its own."""

    def __init__(self, folder: Path, *options: object, **env: str) -> None:
        self._log = folder / f"log-{len(list(folder.glob('log-*')))}"
        argv = [sys.executable, "-m", "django", "foqs_worker", *map(str, options)]
        variables = environment(**{"DJANGO_SETTINGS_MODULE": "tests.contrib.settings", "PYTHONPATH": str(ROOT), **env})
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=folder, env=variables, stderr=log, stdout=log)

    def said(self) -> str:
        return self._log.read_text()

    def reached(self, condition) -> None:
        until(lambda: condition() or self.process.poll() is not None, self.said)
        assert condition(), self.said()

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"process\.started +pid=(\d+)", self.said())]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LATER)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("data"))
    yield running
    running.stop()


@pytest.fixture
def start(tmp_path, service, configured):
    """`start(*options, **env)` starts a worker of the project on a host, in a namespace of its own. The test has the
    same project."""
    namespace = uuid4().hex
    configured(service, namespace=namespace)
    running = []

    def begin(*options, **env):
        env = {"FOQS_ADDRESS": service.address, "FOQS_NAMESPACE": namespace, "SHOP_LOGGING": "1", **env}
        running.append(Worker(tmp_path, *options, **env))
        return running[-1]

    yield begin
    for worker in running:
        worker.process.kill()
        worker.process.wait()


def ended(result):
    def look() -> bool:
        result.refresh()
        return result.is_finished

    until(look, "the end of the task")
    return result


@pytest.mark.process
def test_processes_run_the_tasks_of_the_project(start, tmp_path):
    gate = tmp_path / "gate"
    results = [tasks.waits.enqueue(str(gate)) for _ in range(2)] + [tasks.awaits.enqueue(str(gate)) for _ in range(2)]
    worker = start("--processes", 2, "--concurrency", 2)
    worker.reached(lambda: all(task_backends["default"].get_result(one.id).started_at for one in results))
    queried, mail = tasks.query.enqueue(), tasks.aadd.enqueue(1)
    gate.touch()
    assert {ended(one).return_value for one in results} == set(worker.pids)
    assert [ended(queried).return_value[0], ended(mail).return_value] == [1, 2]
    assert all(one.worker_ids[0].endswith(f":{one.return_value}") for one in results)
    failed = tasks.rejects.enqueue()
    assert ended(failed).status == TaskResultStatus.FAILED
    worker.reached(lambda: "the handler rejected" in worker.said())  # though LOGGING disables other loggers
    assert worker.stop() == 0


@pytest.mark.process
def test_a_failure_for_good_is_in_the_log_once(start, configured, service):
    """Django logs it as well, with the same traceback."""
    namespace = task_backends["default"].registered().namespace
    configured(service, namespace=namespace, max_attempts=1)
    result, rejected = tasks.fails.enqueue("no such user"), tasks.rejects.enqueue()
    worker = start(SHOP_LOGGING="")
    assert [ended(one).status for one in (result, rejected)] == [TaskResultStatus.FAILED] * 2
    worker.reached(lambda: "attempt 1 of 1, it is in the dead-letter topic default.dlq" in worker.said())
    worker.reached(lambda: f"Task id={rejected.id}" in worker.said())
    assert worker.stop() == 0
    assert worker.said().count("ValueError: no such user") == 1
    assert f"Task id={result.id}" not in worker.said()


@pytest.mark.process
def test_a_killed_process_has_used_an_attempt(start, tmp_path):
    result = tasks.waits.enqueue(str(tmp_path / "gate"))
    worker = start("--lease-ms", 1_000)

    def started(attempts):
        result.refresh()
        return result.attempts == attempts and result.last_attempted_at

    worker.reached(lambda: started(1))
    first = result.started_at
    os.kill(worker.pids[0], signal.SIGKILL)
    worker.reached(lambda: started(2) and len(result.worker_ids) == 2 and result.last_attempted_at != first)
    (tmp_path / "gate").touch()
    assert ended(result).return_value == worker.pids[1]
    assert [int(one.rpartition(":")[2]) for one in result.worker_ids] == worker.pids[:2]
    assert (result.started_at, result.errors) == (first, [])


@pytest.mark.process
def test_a_stop_gives_coroutines_back(start, tmp_path):
    """Without an attempt counted, and without an error."""
    result = tasks.awaits.enqueue(str(tmp_path / "gate"))
    worker = start("--grace-ms", 0)

    def running():
        result.refresh()
        return result.status == TaskResultStatus.RUNNING and result.started_at

    worker.reached(running)
    assert worker.stop() == 1
    result.refresh()
    assert (result.status, result.errors, result.finished_at) == (TaskResultStatus.READY, [], None)


@pytest.mark.process
def test_another_backend(start, monkeypatch):
    """Its queues are the topics, and its namespace is its own."""
    other, default = tasks.add.using(backend="other"), tasks.add
    worker = start("--backend", "other", "--max-jobs", 1)
    env = {"address": task_backends["default"].app.address, "namespace": "other"}
    monkeypatch.setattr(task_backends["other"], "options", env)
    result, left = other.enqueue(1), default.enqueue(1)
    worker.reached(lambda: "worker.started" in worker.said())
    assert ended(result).return_value == 2
    left.refresh()
    assert left.status == TaskResultStatus.READY
    assert "topics=['default']" in worker.said()


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--backend", "nothing"), "The connection 'nothing' doesn't exist."),
        (("--topics", "mail,"), "--topics: 'mail,' has an empty name"),
        (("--max-memory", "much"), "--max-memory: 'much' is no size"),
        (("--processes", "0"), "argument --processes: 0 is not in the range 1 to"),
        (("--concurrency", "x"), "argument --concurrency: invalid int value: 'x'"),
    ],
)
def test_wrong_options(start, options, words):
    worker = start(*options)
    assert worker.process.wait(LATER) != 0
    assert words in worker.said()
    assert "Traceback" not in worker.said()


@pytest.mark.process
def test_a_project_that_fails_is_said_once(start, tmp_path):
    wrong = "from tests.contrib.settings import *\nTASKS['default']['OPTIONS'] = {'adress': 1}\n"
    (tmp_path / "broken.py").write_text(wrong)
    worker = start("--processes", 2, DJANGO_SETTINGS_MODULE="broken")
    assert worker.process.wait(LATER) == 1
    assert worker.said().count("TASKS['default']: OPTIONS has no option adress") == 1


@pytest.mark.memory
def test_the_options_are_those_of_foqs_worker():
    names = {name for name, *_ in command._options()}
    own = foqs_worker.__annotations__.keys() - {"spec", "app_dir", "hard_limit_ms", "return"}
    assert names == own
