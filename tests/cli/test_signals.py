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


def test_only_the_error_of_a_late_signal_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread received the signal while its handler was replaced."""
    shown: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", shown.append)
    late = SimpleNamespace(exc_value=OSError("Signal 15 ignored due to race condition"))
    other = SimpleNamespace(exc_value=OSError("disk"))
    for error in (late, other):
        signals._unraisable(error)  # type: ignore[arg-type]
    assert shown == [other]
