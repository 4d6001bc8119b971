"""docs/do/stopping.md: its numbers and its claims, with real processes."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from foqs import App
from foqs.bounds import WORKER_GRACE_MS
from foqs.cli.keeper import END_S
from foqs.cli.worker_supervisor import LAST_S, PATIENCE_S
from foqs.client import AsyncWorker, Client, ItemState, Worker
from foqs.client.ending import _END_S, END_OF_PROCESS_MS
from tests.api.hosts import environment, foqs, until
from tests.cli.worker_rig import LEASE_MS, Shop, Start, ended, gone, reached
from tests.client.peer import LATER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/do/stopping.md").read_text()
KUBERNETES_S = 30


def block(kind: str) -> str:
    found = re.search(rf"^```{kind} [^\n]*\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, kind
    return found[1]


def option_ms(args: list[str]) -> int:
    return int(next(arg for arg in args if arg.startswith("--grace-ms=")).partition("=")[2])


# ------------------------------------------------------------------------------------------ numbers


def test_the_default_grace_ends_before_kubernetes_kills() -> None:
    end_s = WORKER_GRACE_MS / 1000 + PATIENCE_S + LAST_S
    assert end_s < KUBERNETES_S
    assert f"{WORKER_GRACE_MS // 1000} s by default" in PAGE
    assert f"all is over after {end_s:.0f} s" in PAGE
    assert f"still there {PATIENCE_S + LAST_S:.0f} s after the grace" in PAGE
    assert _END_S * 1000 < END_OF_PROCESS_MS, "the items come again when the process has ended"
    assert f"comes again after {END_OF_PROCESS_MS // 1000} s" in PAGE
    assert END_S > 0


def test_every_manifest_leaves_the_worker_its_time() -> None:
    example = next(yaml.safe_load_all((ROOT / "deploy" / "k8s" / "workers" / "worker.yaml").read_text()))
    for pod in (example["spec"]["template"]["spec"], yaml.safe_load(block("yaml"))["spec"]):
        grace_s = option_ms(pod["containers"][0]["args"]) / 1000
        assert pod["terminationGracePeriodSeconds"] > grace_s + PATIENCE_S + LAST_S
    unit = dict(re.findall(r"^(\w+)=(.*)$", block("ini"), re.MULTILINE))
    assert int(unit["TimeoutStopSec"]) > WORKER_GRACE_MS / 1000 + PATIENCE_S + LAST_S
    assert unit["KillMode"] == "mixed"


def test_each_worker_has_the_default() -> None:
    """The commands, and the workers of programs."""
    assert WORKER_GRACE_MS == 25_000
    shown = foqs("worker", "--help").stdout
    assert "25000" in shown.replace(" ", "")
    for kind in (Worker, AsyncWorker):
        assert inspect.signature(kind).parameters["grace_ms"].default == WORKER_GRACE_MS


# ------------------------------------------------------------------------------------------ claims


@pytest.mark.process
@pytest.mark.parametrize("last_line", ["exec {}", "{}; true"])
def test_a_shell_passes_no_signal_on_unless_it_is_replaced(shop: Shop, last_line: str) -> None:
    command = f"{sys.executable} -m foqs worker tasks:app"
    script = shop.folder / "start.sh"
    script.write_text(f"#!/bin/sh\n{last_line.format(command)}\n")
    log = shop.folder / "log"
    with log.open("wb") as stderr:
        shell = subprocess.Popen(
            ["sh", script], cwd=shop.folder, env=environment(), stderr=stderr, start_new_session=True
        )
    try:
        until(lambda: b"worker.started" in log.read_bytes(), log.read_text)
        os.kill(shell.pid, signal.SIGTERM)
        shell.wait(LATER)
        assert (b"processes.stopping" in log.read_bytes()) == last_line.startswith("exec")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.process
def test_the_first_process_of_a_container_stops_in_order(shop: Shop) -> None:
    """The kernel gives it no signal without a handler."""
    log = shop.folder / "log"
    command = [
        "unshare",
        "--fork",
        "--pid",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-m",
        "foqs",
        "worker",
        "tasks:app",
    ]
    if subprocess.run([*command[:5], "true"], capture_output=True).returncode:
        pytest.skip("this user may make no namespace of processes")
    with log.open("wb") as stderr:
        outside = subprocess.Popen(command, cwd=shop.folder, env=environment(), stderr=stderr)
    try:
        until(lambda: b"worker.started" in log.read_bytes(), log.read_text)
        (inside,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        os.kill(int(inside), signal.SIGTERM)
        assert outside.wait(LATER) == 0, log.read_text()
    finally:
        outside.kill()
    assert "worker.stopped" in log.read_text()


PROGRAM = """
import asyncio, sys, threading, time
from foqs import App
from foqs.client import AsyncClient, AsyncWorker, Client, Worker

address, kind = sys.argv[1:]
asked = threading.Event()


def stuck(item, job):
    print("begun", flush=True)
    time.sleep(3600)


async def slow(item, job):
    print("begun", flush=True)
    await asyncio.sleep(3600)


async def deaf(item, job):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def gives(item, job):
    print("begun", flush=True)
    await job.stopping.wait()
    job.release()


def gives_in_thread(item, job):
    print("begun", flush=True)
    job.stopping.wait()
    job.release()


async def main(handler):
    async with AsyncClient(address, "stop") as client:
        await AsyncWorker(client, kind, handler, grace_ms=GRACE, wait_ms=50, lease_ms=120_000).run()


if kind in ("stuck", "gives_in_thread"):
    Worker(Client(address, "stop"), kind, globals()[kind], grace_ms=GRACE, wait_ms=50, lease_ms=120_000).run()
else:
    asyncio.run(main(globals()[kind]))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "grace_ms", "status"),
    [("stuck", 100, 1), ("slow", 100, 1), ("deaf", 100, 1), ("gives", 60_000, 0), ("gives_in_thread", 60_000, 0)],
)
def test_run_of_a_program(tmp_path: Path, shop: Shop, kind: str, grace_ms: int, status: int) -> None:
    """The item comes again without an attempt counted, and before its lease would run out."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("GRACE", str(grace_ms)))
    address = shop.tasks.app.address
    with Client(address, "stop") as client:
        item_id = client.enqueue(kind, b"x")
        with subprocess.Popen(
            [sys.executable, tmp_path / "program.py", address, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment(),
        ) as program:  # fmt: skip
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "begun\n"
                program.send_signal(signal.SIGTERM)
                program.send_signal(signal.SIGINT)  # the same wish: it does not end the grace
                assert program.wait(LATER) == status
            finally:
                program.kill()
        until(lambda: (found := client.get_item(item_id)).state == ItemState.READY and found, "the item to come again")
        assert client.get_item(item_id).attempt == 0
        client.delete_items([item_id])


@pytest.mark.process
def test_a_killed_supervisor_takes_its_processes_along(shop: Shop, start: Start) -> None:
    waiting = shop.tasks.waits.enqueue()
    worker = start()
    reached(worker, lambda: shop.noted("waits"))
    ((_, pid),) = shop.noted("waits")
    worker.send_signal(signal.SIGKILL)
    ended(pid)
    assert gone(pid)
    until(lambda: waiting.state() == ItemState.READY, "the task to come again")
    assert LEASE_MS > LATER * 1000
    assert isinstance(shop.tasks.app, App)
