"""`foqs worker`: its processes on a real host, their stops, deaths and limits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from foqs import TaskFailed
from foqs.cli.worker import size_bytes, topics_of
from foqs.cli.worker_child import odd_topics
from foqs.client import ItemState
from foqs.errors import Invalid
from tests.api.hosts import HostProcess, environment, foqs, until
from tests.cli.worker_rig import LEASE_MS, Shop, Start, ended, gone, pids, reached, ready, why_replaced
from tests.client.peer import LATER

pytestmark = pytest.mark.process

# ------------------------------------------------------------------------------------------ life


def again(worker: HostProcess, number: int) -> None:
    """Send signals until one counts as the second: more than a second after the first."""

    def sent() -> bool:
        worker.send_signal(number)
        return not worker.running

    until(sent, worker.said)


def test_two_processes_run_the_tasks(shop: Shop, start: Start) -> None:
    waiting = [shop.tasks.waits.enqueue() for _ in range(4)]
    worker = start("--processes", 2, "--concurrency", 2)
    reached(worker, lambda: len(shop.noted("waits")) == 4)
    assert {pid for _, pid in shop.noted("waits")} == set(pids(worker))
    shop.open_gate()
    assert [handle.result(LATER) for handle in waiting] == [1] * 4
    assert shop.tasks.pid.enqueue(7).result(LATER) in pids(worker)
    until(lambda: worker.lines == ["did 7"], "what the task printed")
    assert worker.stop() == 0
    assert all(map(gone, pids(worker)))
    assert "died" not in worker.said()


def test_a_stop_waits_for_the_tasks_at_work(shop: Shop, start: Start) -> None:
    waiting = [shop.tasks.waits.enqueue(), shop.tasks.blocks.enqueue()]
    worker = start()
    reached(worker, lambda: shop.noted("waits") and shop.noted("blocks"))
    worker.send_signal(signal.SIGTERM)
    reached(worker, lambda: shop.noted("stopping"))
    left = shop.tasks.pid.enqueue(1)
    shop.open_gate()
    assert worker.wait() == 0
    assert [handle.result(LATER) for handle in waiting] == [1, 1]
    assert left.state() == ItemState.READY


@pytest.mark.parametrize("how", ["second signal", "no grace"])
def test_an_end_at_once_gives_the_tasks_back(shop: Shop, start: Start, how: str) -> None:
    waiting = [shop.tasks.waits.enqueue(), shop.tasks.blocks.enqueue()]
    worker = start(*(["--grace-ms", 0] if how == "no grace" else []))
    reached(worker, lambda: shop.noted("waits") and shop.noted("blocks"))
    worker.send_signal(signal.SIGINT)
    if how != "no grace":
        reached(worker, lambda: shop.noted("stopping"))
        again(worker, signal.SIGINT)
    assert worker.wait() == 1
    assert re.search(r"worker\.abandoned +items=.*task='waits' attempt=1.* tasks=2", worker.said())
    assert re.search(r"worker\.stopped +.*released=2 ", worker.said())
    other = start()
    reached(other, lambda: len(shop.noted("waits")) == len(shop.noted("blocks")) == 2)
    shop.open_gate()
    assert [handle.result(LATER) for handle in waiting] == [1, 1]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_thread_left_behind_delays_no_end(shop: Shop, start: Start, signals: int) -> None:
    """The event loop would wait for it for 300 s."""
    shop.tasks.aside.enqueue()
    worker = start(*(["--grace-ms", 100] if signals == 1 else []))
    reached(worker, lambda: shop.noted("aside"))
    worker.send_signal(signal.SIGTERM)
    reached(worker, lambda: "processes.stopping" in worker.said())
    if signals == 2:
        again(worker, signal.SIGTERM)
    assert worker.wait() == 1
    assert "worker.stopped" in worker.said()


def test_ctrl_c_in_a_terminal(shop: Shop) -> None:
    """The terminal sends SIGINT to the supervisor alone, as its processes have groups of their own."""
    waiting = shop.tasks.waits.enqueue()
    argv = [sys.executable, "-m", "foqs", "worker", "tasks:app", "--lease-ms", str(LEASE_MS)]
    program = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({argv})))"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=shop.folder, env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, bufsize=0,
    ) as terminal:  # fmt: skip
        try:
            assert terminal.stdin is not None
            until(lambda: shop.noted("waits"), "the task")
            terminal.stdin.write(b"\x03")
            terminal.stdin.flush()
            until(lambda: shop.noted("stopping"), "the stop")
            assert waiting.state() == ItemState.LEASED

            def interrupted() -> bool:
                terminal.stdin.write(b"\x03")
                terminal.stdin.flush()
                return terminal.poll() is not None

            with suppress(BrokenPipeError):
                until(interrupted, "the end")
            assert terminal.wait(LATER) == 1
        finally:
            terminal.kill()
    until(lambda: waiting.state() == ItemState.READY, "the task to come again")


def test_a_killed_process_is_replaced_and_its_task_runs_again(shop: Shop, start: Start) -> None:
    waiting = shop.tasks.waits.enqueue()
    worker = start("--lease-ms", 1_000)
    reached(worker, lambda: shop.noted("waits"))
    (first,) = pids(worker)
    os.kill(first, signal.SIGKILL)
    reached(worker, lambda: len(shop.noted("waits")) == 2)
    assert shop.noted("waits")[1] == (2, pids(worker)[1])
    assert "status=-9" in worker.said()
    shop.open_gate()
    assert waiting.result(LATER) == 2
    assert worker.stop() == 0


def test_a_fork_of_a_task_delays_no_restart(shop: Shop, start: Start) -> None:
    shop.tasks.forks.enqueue()
    worker = start()
    reached(worker, lambda: shop.noted("forked"))
    ((child, pid),) = shop.noted("forked")
    try:
        os.kill(pid, signal.SIGKILL)
        ready(worker, 2)
        assert not gone(child)
        os.kill(child, signal.SIGTERM)
        ended(child)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("task", ["waits", "blocks", "holds_the_loop"])
def test_no_process_outlives_the_supervisor(shop: Shop, start: Start, task: str) -> None:
    getattr(shop.tasks, task).enqueue()
    worker = start("--processes", 2)
    word = "holds" if task == "holds_the_loop" else task
    reached(worker, lambda: shop.noted(word))
    ready(worker, 2)
    worker.kill()
    for pid in pids(worker):
        ended(pid)


# ------------------------------------------------------------------------------------------ limits


def test_a_process_ends_after_its_jobs(shop: Shop, start: Start) -> None:
    worker = start("--max-jobs", 2, "--concurrency", 1)
    found = [shop.tasks.pid.enqueue(n).result(LATER) for n in range(7)]
    assert len(set(found)) >= 3
    reached(worker, lambda: why_replaced(worker)[:2] == ["max_jobs"] * 2)
    assert worker.stop() == 0
    assert "died" not in worker.said()


def test_a_process_with_too_much_memory_ends_after_its_tasks(shop: Shop, start: Start) -> None:
    waiting = shop.tasks.waits.enqueue()
    worker = start("--max-memory", "300M")
    reached(worker, lambda: shop.noted("waits"))
    first = shop.tasks.grows.enqueue(1).result(LATER)
    assert shop.tasks.grows.enqueue(400).result(LATER) == first
    left = shop.tasks.pid.enqueue(1)
    assert waiting.state() == ItemState.LEASED
    shop.open_gate()
    assert waiting.result(LATER) == 1
    assert left.result(LATER) == pids(worker)[1] != first
    assert why_replaced(worker) == ["max_memory"]


def test_a_limit_below_the_start_still_runs_tasks(shop: Shop, start: Start) -> None:
    worker = start("--max-memory", "1M")
    found = [shop.tasks.pid.enqueue(n).result(LATER) for n in range(3)]
    assert len(set(found)) == 3, worker.said()


def test_the_hard_limit_gives_back_other_tasks(shop: Shop, start: Start) -> None:
    waiting = [shop.tasks.waits.enqueue(), shop.tasks.blocks.enqueue()]
    worker = start("--hard-limit-ms", 300, "--grace-ms", 600_000)
    reached(worker, lambda: shop.noted("waits") and shop.noted("blocks"))
    assert shop.tasks.stuck.enqueue().result(LATER) == 2  # one failed attempt
    first, second, *_ = pids(worker)
    assert [pid for _, pid in shop.noted("stuck")] == [first, second]
    reached(worker, lambda: len(shop.noted("waits")) == len(shop.noted("blocks")) == 2)
    shop.open_gate()
    assert [handle.result(LATER) for handle in waiting] == [1, 1]
    assert why_replaced(worker) == ["hard_limit"]
    assert worker.stop() == 0


def test_a_process_that_drains_does_not_wait_for_a_stuck_task(shop: Shop, start: Start) -> None:
    worker = start("--max-jobs", 1, "--grace-ms", 600_000)
    ready(worker, 1)
    stuck = shop.tasks.stuck.enqueue()
    reached(worker, lambda: shop.noted("stuck"))
    shop.tasks.pid.enqueue(1).result(LATER)
    assert stuck.result(LATER) == 2
    assert "hard_limit" in why_replaced(worker)
    assert re.search(r"worker\.draining +process=1 running=1 why=max_jobs", worker.said())
    assert "Traceback" not in worker.said()
    assert len(re.findall(r"the time limit of .* attempt=1\) has passed", worker.said())) == 1


# ------------------------------------------------------------------------------------------ log


def test_a_failed_attempt_is_one_line(shop: Shop, start: Start) -> None:
    worker = start(FOQS_LOG__FORMAT="json")
    broken, late = shop.tasks.bad.enqueue("raise"), shop.tasks.late.enqueue()
    assert late.result(LATER) == 2
    reached(worker, lambda: worker.said().count("no such user") >= 2)
    shop.tasks.pid.enqueue(1).result(LATER)
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.said().splitlines()]
    failed = [line for line in lines if line["level"] in ("warning", "error")]
    told = [
        (f"{broken.id} topic='bad' task='bad' attempt=1", "the handler failed", ": attempt 1 of 2, again in 1 ms"),
        (f"{broken.id} topic='bad' task='bad' attempt=2", "the handler failed",
         ": attempt 2 of 2, it is in the dead-letter topic bad.dlq"),
        (f"{late.id} topic='late' task='late' attempt=1", "the time limit", ": attempt 1 of 25, again in 1 ms"),
    ]  # fmt: skip
    assert len(failed) == len(told)
    assert [line["level"] for line in failed].count("error") == 1, "only the last attempt"
    for item, words, sequel in told:
        (line,) = [line for line in failed if item in line["event"]]
        assert line["event"].startswith(words)
        assert line["event"].endswith(sequel), line
        assert (line["process"], "ValueError: no such user" in line.get("exception", "")) == (
            "1",
            words != "the time limit",
        )


# ------------------------------------------------------------------------------------------ what cannot start


@pytest.mark.parametrize(
    ("source", "spec", "words"),
    [
        ("import no_such_module", "other:app", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("from foqs import App\napp = App()", "other:app", "other:app has no tasks"),
        ("", "missing:app", "there is no module missing in "),
    ],
)
def test_what_no_restart_would_cure_is_said_once(tmp_path: Path, source: str, spec: str, words: str) -> None:
    (tmp_path / "other.py").write_text(source)
    done = foqs("worker", spec, "--app-dir", tmp_path, "--processes", "3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count(words) == done.stderr.count("foqs: ") == 1, done.stderr
    assert "died" not in done.stderr


def test_the_address_of_the_metrics_needs_their_port(tmp_path: Path) -> None:
    done = foqs("worker", "missing:app", "--app-dir", tmp_path, "--metrics-host", "0.0.0.0")
    assert done.returncode == 1
    assert done.stderr == "foqs: --metrics-host needs --metrics-port: without it there are no metrics\n"


def test_what_ends_a_worker_later_ends_the_command(shop: Shop, start: Start) -> None:
    """The service refuses the schedule."""
    with (shop.folder / "tasks.py").open("a") as source:
        source.write("\n\n@app.periodic('@every 1h')\n@app.task(topic='quick')\ndef periodic() -> None: ...\n")
        source.write("\n\napp.schedules['periodic']['cron'] = 'never'\n")
    worker = start("--processes", 2)
    assert worker.wait() == 1
    assert worker.said().splitlines()[-1].startswith("foqs: "), worker.said()


@pytest.mark.parametrize(
    ("text", "topics"),
    [("mail", ["mail"]), ("mail, default", ["mail", "default"]), ("mail=3,default", {"mail": 3, "default": 1})],
)
def test_topics(text: str, topics: object) -> None:
    assert topics_of(text) == topics


@pytest.mark.parametrize(
    "text", ["", "mail,", "mail,mail", "mail=3,mail", "mail=", "mail=0", "mail=x", "=3", "mail=1.5"]
)
def test_wrong_topics(text: str) -> None:
    with pytest.raises(Invalid, match=r"^--topics: "):
        topics_of(text)


def test_what_the_service_refuses_is_one_line(shop: Shop, start: Start) -> None:
    worker = start("--topics", "x" * 1_000)
    assert worker.wait() == 1
    assert worker.said().splitlines()[-1].startswith("foqs: "), worker.said()
    assert "Traceback" not in worker.said() and "the worker ends" not in worker.said()


def test_odd_topics_are_said_once(shop: Shop, start: Start) -> None:
    worker = start("--topics", "quick,tpyo", "--processes", 2)
    ready(worker, 2)
    assert re.findall(r"worker\.topics_without_tasks +topics=(.+)", worker.said()) == ["['tpyo']"]
    assert len(re.findall(r"worker\.topics_left_out +topics=.*'waits'", worker.said())) == 1


def test_the_topics_of_the_tasks_are_not_odd(shop: Shop) -> None:
    tasks = shop.tasks.app.tasks
    assert not any(odd_topics({task.default["topic"] for task in tasks.values()}, tasks).values())


def test_the_text_of_exceptions_is_sent(shop: Shop, start: Start) -> None:
    with pytest.raises(TaskFailed, match=r"ValueError$"):
        start_and_fail(shop, start)
    with pytest.raises(TaskFailed, match="no such user"):
        start_and_fail(shop, start, "--report-errors")


def start_and_fail(shop: Shop, start: Start, *options: str) -> None:
    worker = start("--topics", "bad", *options)
    try:
        shop.tasks.bad.enqueue("raise").result(LATER)
    finally:
        worker.stop()


def test_weights_are_taken(shop: Shop, start: Start) -> None:
    start("--topics", "quick=3,waits")
    shop.tasks.pid.enqueue(1).result(LATER)


@pytest.mark.parametrize(("text", "size"), [("512M", 512 << 20), ("2 GiB", 2 << 30), ("64kb", 64 << 10)])
def test_a_size(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "512", "0M", "-1G", "1.5G", "1T", "M"])
def test_a_wrong_size(text: str) -> None:
    with pytest.raises(Invalid, match=r"^--max-memory: "):
        size_bytes(text)
