"""One server process: started so that it cannot outlive us, signalled by its own pid, always reaped."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

# Below the ports that Linux gives to outgoing connections, so that a killed server finds its port free again.
_PORTS = range(15_000, 32_000)
# Picked ports that may have no listener yet. Above this number the oldest may be picked again.
_MOST_RESERVED = 256
_POLL_S = 0.02
_PAUSE_MS = 10_000
# Parallel test workers seed `random` alike.
_random = random.SystemRandom()


class ServerProcess:
    """A running child process, its log in a file. Thread-safe."""

    def __init__(self, argv: Sequence[str], *, log: Path) -> None:
        """Start `argv` and append its output to `log`.

        Raises:
            OSError: the program cannot be executed.
        """
        self._log = log
        self._lock = threading.Lock()
        self._popen = _spawner(os.getpid()).submit(_spawn, _dying_with_us(argv), log).result()

    @property
    def pid(self) -> int:
        """The server's own pid: nothing wraps it."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it runs or is paused."""
        with self._lock:
            return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL, then waits until it is gone. Does nothing to one that is gone."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing. Returns when no thread of it runs any more."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: not self.alive or _is_stopped(self.pid), timeout_ms=_PAUSE_MS)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def stop(self, *, grace_ms: int) -> int:
        """SIGTERM, and SIGKILL when it still runs after `grace_ms` milliseconds. Its exit code, negative: a signal."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            return self._popen.wait(grace_ms / 1000)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log, without the long ones' ends."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(line[:300] for line in text.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Does nothing to one that is gone."""
        # `poll` under the same lock: the pid of a reaped process may already belong to another one.
        with self._lock:
            if self._popen.poll() is None:
                self._popen.send_signal(number)


def free_port(above: int = 0) -> int:
    """Return a free loopback TCP port with `above` free ports right above it.

    Another process listens on it, seconds later, and may be killed and restarted. During that time this function gives
    the port to no other caller, in any process of this machine.
    """
    while True:
        port = _random.choice(_PORTS[: len(_PORTS) - above])
        if _reserved.take(range(port, port + above + 1)):
            return port


class _Reserved:
    """Ports that were picked, each held by a Unix socket with a name of its own: no file is left behind, and what a
    killed process held is free again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[socket.socket] = deque()

    def take(self, ports: Sequence[int]) -> bool:
        """All of them, or none."""
        taken: list[socket.socket] = []
        try:
            for port in ports:
                if sys.platform == "linux":  # no other system has names that are no files
                    taken.append(socket.socket(socket.AF_UNIX))
                    taken[-1].bind(f"\0foqs-lab-port-{port}")
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            for each in taken:
                each.close()
            return False
        with self._lock:
            self._held += taken
            while len(self._held) > _MOST_RESERVED:
                self._held.popleft().close()
        return True


_reserved = _Reserved()


def wait_until(condition: Callable[[], bool], *, timeout_ms: int) -> bool:
    """Asks `condition` until it holds; False when it did not within `timeout_ms` milliseconds."""
    deadline = time.monotonic() + timeout_ms / 1000
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped all of its threads: the signal alone only asks for it."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended in between
        return False
    return set(states) <= {"T", "t", "Z", "X"}


def _dying_with_us(argv: Sequence[str]) -> list[str]:
    # setpriv executes the program in its own place, so the pid stays the server's.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *argv] if setpriv else list(argv)


@lru_cache(maxsize=1)
def _spawner(_pid: int) -> ThreadPoolExecutor:
    # The kernel sends the death signal when the *thread* that forked ends, so it must be one that lasts; a
    # forked process has its parent's object without the thread, hence one for each pid.
    return ThreadPoolExecutor(1, thread_name_prefix="foqs-lab-spawn")


def _spawn(argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    # The lab reads the lines of its hosts, so their configuration alone says how these look.
    environment = {name: value for name, value in os.environ.items() if name != "FOQS_LOG__FORMAT"}
    environment["TMPDIR"] = str(log.parent.resolve())  # what a killed process leaves is removed with its log
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
