"""The processes of the pool: replaced when they end, ended with their host, and not trusted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foqs.extras import missing
from foqs.hooks.protocol import Kind
from foqs.server import hook_child, hook_pool
from tests.hooks.rig import ECHO, GOOD, SLOW, STUCK, call_of, hooks, kinds_of, numbered, on_enqueue
from tests.support.waiting import wait_until, wait_until_on_loop

ROOT = Path(__file__).parent.parent.parent


def test_a_process_that_ends_is_replaced() -> None:
    async def main() -> None:
        async with hooks() as of:
            await of.prove(ECHO)
            for _ in range(3):
                await wait_until_on_loop(lambda: of.pool.children == 2)
                before = of.pids
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
                assert kinds_of(await of.run(*numbered(ECHO, 100))) == {"answered": 100}
                await wait_until_on_loop(lambda before=before: not set(of.pids) & set(before))  # type: ignore[misc]
            assert of.pool.kills == 0

    asyncio.run(main())


def test_a_stopped_process_is_killed() -> None:
    """It gets no processor time, so the host waits longer before it ends it."""

    async def main() -> None:
        async with hooks() as of:
            await of.prove(ECHO)
            await wait_until_on_loop(lambda: of.pool.children == 2)
            for pid in of.pids:
                os.kill(pid, signal.SIGSTOP)
            assert kinds_of(await of.run(*numbered(ECHO, 100)))["answered"] >= 98
            assert of.pool.kills >= 1

    asyncio.run(main())


def test_signals_for_the_host_do_not_end_a_process() -> None:
    """A service manager sends SIGTERM to all processes of a service; the host lets its requests end."""

    async def main() -> None:
        async with hooks() as of:
            await of.still_good()
            await wait_until_on_loop(lambda: of.pool.children == 2)
            before = of.pids
            for pid in before:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    os.kill(pid, number)
            assert kinds_of(await of.run(*numbered(ECHO, 100))) == {"answered": 100}
            assert of.pids == before

    asyncio.run(main())


def test_a_stuck_process_ends_without_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own alarm: the host of this test does not kill it."""
    monkeypatch.setattr(hook_child, "GRACE_MS", 600_000)
    alarm = "import foqs.hooks.runner; foqs.hooks.runner._ALARM_S = 0.2; from foqs.hooks.runner import main"
    boot = hook_child._BOOT.replace("from foqs.hooks.runner import main", alarm)
    assert boot != hook_child._BOOT
    monkeypatch.setattr(hook_child, "_BOOT", boot)

    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(on_enqueue(STUCK))
            assert (failed.kind, failed.text) == (Kind.KILLED, "the process of the script ended in the call")
            assert of.pool.kills == 0

    asyncio.run(main())


HOST = """
import asyncio, sys
from tests.hooks.rig import hooks

async def main():
    async with hooks() as of:
        await of.still_good()
        while of.pool.children < 2:
            await asyncio.sleep(0.01)
        print(*(place.process.pid for place in of.pool._places), file=sys.stderr, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_processes_end_with_a_host_that_is_killed() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert host.stderr is not None
    try:
        children = [int(word) for word in host.stderr.readline().split()]
        assert len(children) == 2
    finally:
        host.kill()
        host.wait()
        host.stderr.close()
    wait_until(lambda: not any(alive(pid) for pid in children))


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie waits for a parent that may never read its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_close_ends_and_reaps_the_processes() -> None:
    async def main() -> None:
        async with hooks() as of:
            await of.still_good()
            await wait_until_on_loop(lambda: of.pool.children == 2)
            before = of.pids
            running = asyncio.ensure_future(of.run(*numbered(SLOW, 500)))
            await wait_until_on_loop(lambda: of.pool.calls > 3)
            await of.pool.close()
            for pid in before:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
            assert kinds_of(await running)[Kind.UNAVAILABLE] > 0
            assert (await of.failed(GOOD)).text.startswith("the host stops")
            assert of.pool.queued == of.pool.children == 0

    asyncio.run(main())


def test_a_host_without_lupa_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_pool, "lupa_folder", lambda: None)

    async def main() -> None:
        async with hooks() as of:
            assert of.pool.missing == (missing("this host cannot run scripts: the package lupa", "hooks"))
            failed = await of.failed(GOOD)
            assert (failed.kind, failed.text) == (Kind.UNAVAILABLE, of.pool.missing)
            assert of.pool.children == 0

    asyncio.run(main())


BROKEN = {
    "ends at once": "raise SystemExit",
    "sends no message": "import os; os.write(0, b'\\xff' * 100)",
    "sends nonsense": "import os; os.write(0, b'\\0\\0\\0\\2{}'); os.read(0, 1)",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_process_that_does_not_start_is_tried_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_pool, "_FIRST_PAUSE_S", 0.01)
    boot = hook_child._BOOT
    monkeypatch.setattr(hook_child, "_BOOT", BROKEN[how])

    async def main() -> None:
        async with hooks() as of:
            waiting = asyncio.ensure_future(of.run(call_of(GOOD)))
            await wait_until_on_loop(lambda: all(place.failed_starts >= 2 for place in of.pool._places))
            monkeypatch.setattr(hook_child, "_BOOT", boot)
            assert kinds_of(await waiting) == {"answered": 1}
            await wait_until_on_loop(lambda: of.pool.children == 2)

    asyncio.run(main())


LIARS = {
    "more replies than calls": '["results", [[1, 1, {}], [1, 1, {}]], 0]',
    "more left than calls": '["results", [[1, 1, {}]], 7]',
    "no replies": '["results", [], 1]',
    "no columns": '["columns", [], [], [], [], 1]',
    "more in columns than calls": '["columns", [1, 1], [1, 1], [], [], 0]',
    "columns of other lengths": '["columns", [1], [1], ["weight"], [[1, 1]], 0]',
    "fewer numbers than replies": '["columns", [1], [], ["weight"], [[1]], 0]',
    "a column that is none": '["columns", [1], [1], ["weight"], ["x"], 0]',
    "unknown message": '["bye"]',
    "a second hello": '["hello", "seccomp"]',
}


@pytest.mark.parametrize("how", LIARS)
def test_a_process_that_lies_is_ended(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lie = (
        "import os\n"
        "def send(text): os.write(0, len(text).to_bytes(4, 'big') + text.encode())\n"
        'send(\'["hello", "none"]\'); os.read(0, 1)\n'
        f"send('''{LIARS[how]}'''); os.read(0, 1 << 20); os.read(0, 1)"
    )
    monkeypatch.setattr(hook_child, "_BOOT", lie)

    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(GOOD)
            assert (failed.kind, failed.text) == (Kind.KILLED, "the process of the script ended in the call")

    asyncio.run(main())
