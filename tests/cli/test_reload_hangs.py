"""A host stops although it cannot finish reading its configuration."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

HUNG = """
import asyncio, os, signal, threading, uvloop
from foqs.cli import signals
from foqs.cli.signals import on_hangup
from foqs.config.load import Config

begun = threading.Event()

def read():
    begun.set()
    threading.Event().wait()

async def main():
    stop = asyncio.Event()
    signals.on_stop(stop.set)
    reloading = on_hangup(Config(), read, print)
    os.kill(os.getpid(), signal.SIGHUP)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    print("stopped", flush=True)

with signals.last_work():
    {run}(main())
"""


@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"])
def test_a_disk_that_hangs_does_not_keep_a_host_from_stopping(run: str) -> None:
    program = HUNG.replace("{run}", run)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
