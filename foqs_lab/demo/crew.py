"""The demo's processes: one host and a pool of workers, each a real child process with its log in a file."""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import foqs
from foqs_lab.servers.process import Restartable, ServerProcess, wait_until

_START_MS = 30_000
_STOP_MS = 15_000
_LISTENING = "foqs listening on "
# `-m` would let modules of the current folder take the place of real ones (-P does not), but a checkout that is not
# installed is found in no other way.
_IN_CHECKOUT = Path.cwd() == Path(foqs.__file__).parent.parent
_PYTHON = (sys.executable,) if _IN_CHECKOUT else (sys.executable, "-P")


class DemoFailed(Exception):
    """A process of the demo did not run, or the queue did not answer. `log_tail`: the last lines of the process."""

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason)
        self.log_tail = log_tail


class _Child(Restartable):
    """A process of the demo. It must not end by itself."""

    def __init__(self, what: str, log: Path, *argv: str) -> None:
        self._what, self._log = what, log
        self._process = ServerProcess([*_PYTHON, "-m", *argv], log=log)

    def check(self) -> None:
        """Raise DemoFailed if the process ended by itself."""
        if not self.alive:
            raise self.failed("ended by itself")

    def failed(self, reason: str) -> DemoFailed:
        return DemoFailed(f"{self._what} {reason}", self._started().log_tail())

    def end(self) -> int:
        """Send SIGTERM, and wait. Return the exit code."""
        return self._started().stop(grace_ms=_STOP_MS)

    def said(self) -> str:
        return self._log.read_text(errors="replace")


class Host(_Child):
    """`foqs dev` on SQLite shards in `folder`/data."""

    def __init__(self, folder: Path) -> None:
        argv = ("foqs", "dev", "--data-dir", str(folder / "data"), "--port", "0")
        super().__init__("the host", folder / "host.log", *argv)

    def wait_address(self) -> str:
        """Return `HOST:PORT` once it serves. Raises DemoFailed if it does not within 30 s."""
        wait_until(lambda: not self.alive or self._address() is not None, timeout_ms=_START_MS)
        address = self._address()
        if address is None:
            raise self.failed("did not start")
        return address

    def stop(self) -> None:
        """Stop the host after it has finished its requests. Raises DemoFailed if it could not."""
        if self.end():
            raise self.failed("did not stop in order")

    def _address(self) -> str | None:
        for line in self.said().splitlines(keepends=True):
            if line.startswith(_LISTENING) and line.endswith("\n"):
                return line.removeprefix(_LISTENING).strip()
        return None


class WorkerProcess(_Child):
    """One process of the pool; see `worker`."""

    def __init__(self, number: int, address: str, root: Path, folder: Path) -> None:
        self.number = number
        argv = ("foqs_lab.demo.worker", address, str(root))
        super().__init__(f"worker {number}", folder / f"worker-{number}.log", *argv)

    def kill_at_work(self, item: int) -> int:
        """Send SIGKILL if it works on `item`. Return the number of its items, or 0 if it lives on.

        The worker is frozen first, so its output is exact: an item with a `begin` and no `end` was neither
        acked nor nacked, so it is leased to a process that will never end it.
        """
        if item not in leases_held(self.said()):
            return 0
        self.pause()
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            self.check()
        held = leases_held(self.said())
        if item in held:
            self.kill()
            return len(held)
        self.resume()
        return 0


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
            list(threads.map(WorkerProcess.end, self.workers))
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
