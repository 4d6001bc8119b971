"""Signals to processes that serve."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from foqs.cli import signals

UNDER_WAY = """
import asyncio, signal, threading, uvloop
from foqs.cli import signals

async def main():
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals.on_stop(stop.set)
    # The signal goes to a thread that does not wait, so it interrupts no system call of the loop.
    threading.Timer(1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    began = loop.time()
    try:
        async with asyncio.timeout(100):
            await stop.wait()
    finally:
        print("late" if loop.time() - began > 50 else "heard")

{run}(main())
"""


@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"])
def test_a_signal_wakes_the_loop(run: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_WAY.replace("{run}", run)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


HUNG = """
import asyncio, os, signal, threading, uvloop
from foqs.cli import signals
from foqs.config.load import Config

begun = threading.Event()

def read():
    begun.set()
    threading.Event().wait()

async def main():
    stop = asyncio.Event()
    signals.on_stop(stop.set)
    reloading = signals.on_hangup(Config(), read, print)
    os.kill(os.getpid(), signal.SIGHUP)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    print("stopped", flush=True)

with signals.last_work():
    {run}(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"])
def test_a_disk_that_hangs_does_not_keep_a_host_from_stopping(run: str) -> None:
    program = HUNG.replace("{run}", run)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_only_the_error_of_a_late_signal_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread received the signal while its handler was replaced."""
    shown: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", shown.append)
    late = SimpleNamespace(exc_value=OSError("Signal 15 ignored due to race condition"))
    other = SimpleNamespace(exc_value=OSError("disk"))
    for error in (late, other):
        signals._unraisable(error)  # type: ignore[arg-type]
    assert shown == [other]
