"""`foqs dev` for tests of the client, killed and started again on the same data, and the service of `foqs.testing`."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest

from foqs import testing
from tests.client.peer import LATER
from tests.support import forked
from tests.support.ports import held_port

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(filter(None, sys.path)),
    "FOQS_LOG__LEVEL": "warning",
    # The shard of each item, the order over two shards, and that all is found, hold however slow one is.
    "FOQS_HOST__MERGE_WAIT_MS": "30000",
    "FOQS_HOST__CONFIRM_MS": "30000",
    "FOQS_BREAKER__HANG_MS": "60000",
    "FOQS_BREAKER__MEAN_LATENCY_MS": "60000",
}
PATIENT_MS = 60_000
"""For a dequeue that will find something, and for a call over a restart."""


class Server:
    """`foqs dev` on a data directory and a port of its own, which no other process gets while it is away."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self._data_dir = data_dir
        self._environment = {**ENVIRONMENT, **environment}
        self._held = held_port()
        self._port = str(self._held.getsockname()[1])
        self.start()

    def start(self) -> None:
        args = ["dev", "--data-dir", str(self._data_dir), "--port", self._port, "--shards", "2"]
        read, write = os.pipe()
        with open(os.devnull) as nothing, open(write) as stdout:
            self.process = forked.Forked(args, [nothing.fileno(), stdout.fileno(), 2], self._environment)
        with open(read) as lines:
            line = lines.readline()
        assert line.startswith("foqs listening on "), line
        self.address = line.split()[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LATER)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(2 * LATER)
        self._held.close()


class InMemory:
    """The service of `foqs.testing`, whose clock a thread moves with the time of the machine."""

    def __init__(self, _: Path) -> None:
        self._service = testing.Server()
        self.address = self._service.address
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()

    def _tick(self) -> None:
        moved = monotonic()
        while not self._stopped.wait(0.005):
            now = monotonic()
            self._service.advance(timedelta(milliseconds=int((now - moved) * 1000)))
            moved += int((now - moved) * 1000) / 1000

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(LATER)
        self._service.close()


on_each_host = pytest.mark.parametrize("server", [Server, InMemory], indirect=True)
"""A test that does not kill its host runs on both kinds."""


def foqs(server: Server, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return forked.run(
        [*args, "--address", server.address, "-n", "shop"], ENVIRONMENT, stdin, timeout_s=2 * PATIENT_MS / 1000
    )
