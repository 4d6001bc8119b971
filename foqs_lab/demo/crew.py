"""The demo's processes: one host and a pool of workers, each a real child process with its log in a file."""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import foqs
from foqs_lab.servers.process import ServerProcess, wait_until


class DemoFailed(Exception):
    """A process of the demo did not run, or the queue did not answer.

    Attributes:
        log_tail: the last lines that the process concerned printed, if any.
    """

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason)
        self.log_tail = log_tail


_START_MS = 30_000
_STOP_MS = 15_000
_LISTENING = "foqs listening on "
# `-m` would let modules of the current folder take the place of real ones (-P does not), but a checkout that is not
# installed is found in no other way.
_IN_CHECKOUT = Path.cwd() == Path(foqs.__file__).parent.parent
_PYTHON = (sys.executable,) if _IN_CHECKOUT else (sys.executable, "-P")


class Host:
    """`foqs dev` on SQLite shards in `folder`/data."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "host.log"
        data = str(folder / "data")
        self._process = ServerProcess([*_PYTHON, "-m", "foqs", "dev", "--data-dir", data, "--port", "0"], log=self._log)

    def wait_address(self) -> str:
        """`HOST:PORT` once it serves. Raises DemoFailed when it does not within 30 s."""
        wait_until(lambda: not self._process.alive or self._address() is not None, timeout_ms=_START_MS)
        address = self._address()
        if address is None:
            raise DemoFailed("the host did not start", self._process.log_tail())
        return address

    def check(self) -> None:
        """Raises DemoFailed when it is gone."""
        if not self._process.alive:
            raise DemoFailed("the host ended by itself", self._process.log_tail())

    def stop(self) -> None:
        """Stop the host after it has finished its requests. Raises DemoFailed if it could not."""
        if self._process.stop(grace_ms=_STOP_MS):
            raise DemoFailed("the host did not stop in order", self._process.log_tail())

    def kill(self) -> None:
        self._process.kill()

    def _address(self) -> str | None:
        for line in self._log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(_LISTENING) and line.endswith("\n"):
                return line.removeprefix(_LISTENING).strip()
        return None


class WorkerProcess:
    """One process of the pool; see `worker`."""

    def __init__(self, number: int, address: str, root: Path, folder: Path) -> None:
        self.number = number
        self._log = folder / f"worker-{number}.log"
        self._process = ServerProcess([*_PYTHON, "-m", "foqs_lab.demo.worker", address, str(root)], log=self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise DemoFailed if the worker ended by itself."""
        if not self._process.alive:
            raise DemoFailed(f"worker {self.number} ended by itself", self._process.log_tail())

    def kill_at_work(self, item: int) -> int:
        """SIGKILL if it works on `item`; returns how many it works on, 0 when it lives on.

        The worker is frozen first, so its output is exact: an item with a `begin` and no `end` was neither
        acked nor nacked, so it is leased to a process that will never say another word.
        """
        if item not in leases_held(self._said()):
            return 0
        self._process.pause()
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            self.check()
        held = leases_held(self._said())
        if item in held:
            self._process.kill()
            return len(held)
        self._process.resume()
        return 0

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        self._process.stop(grace_ms=_STOP_MS)

    def kill(self) -> None:
        self._process.kill()


class Crew:
    """The workers now alive."""

    def __init__(self, address: str, root: Path, folder: Path) -> None:
        self._home = (address, root, folder)
        self._started = 0
        self.workers: list[WorkerProcess] = []

    def add(self) -> WorkerProcess:
        self._started += 1
        worker = WorkerProcess(self._started, *self._home)
        self.workers.append(worker)
        return worker

    def check(self) -> None:
        for worker in self.workers:
            worker.check()

    def kill_one_at_work(self, item: int) -> tuple[WorkerProcess, int] | None:
        """Kill the worker of `item`. Return it and its number of leases; None if no worker has begun the item."""
        for worker in self.workers:
            if held := worker.kill_at_work(item):
                self.workers.remove(worker)
                return worker, held
        return None

    def stop(self) -> None:
        """Stop all workers: each finishes its item and gives back the rest."""
        with ThreadPoolExecutor(max(1, len(self.workers))) as threads:
            list(threads.map(WorkerProcess.stop, self.workers))
        self.workers.clear()

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.workers.clear()


def leases_held(log: str) -> set[int]:
    """The items that a worker's log begins and does not end."""
    count: Counter[int] = Counter()
    for line in log.splitlines():
        word, _, item = line.partition(" ")
        if word in ("begin", "end") and item.isdigit():
            count[int(item)] += 1 if word == "begin" else -1
    return {item for item, left in count.items() if left > 0}
