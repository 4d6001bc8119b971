"""A server process: started so that it cannot outlive us, signalled by its own pid, always reaped.

A private server runs one process at a time, and has its files in a temporary directory.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Self


class ServerUnavailable(Exception):
    """No usable program was found, or the server did not answer in time. `reason` is one line, for a skip message."""

    def __init__(self, reason: str, *, log_tail: str = "") -> None:
        super().__init__(f"{reason}\n{log_tail}" if log_tail else reason)
        self.reason = reason
        self.log_tail = log_tail


# Below the ports that Linux gives to outgoing connections, so that a killed server finds its port free again.
_PORTS = range(15_000, 32_000)
# Picked ports that may have no listener yet. Above this number the oldest may be picked again.
_MOST_RESERVED = 256
_POLL_S = 0.02
_PAUSE_MS = 10_000
_PORT_ATTEMPTS = 5
_INITIALISE_TIMEOUT_S = 120
# Parallel test workers seed `random` alike.
_random = random.SystemRandom()


class ServerProcess:
    """A running child process, its log in a file. Thread-safe."""

    def __init__(self, argv: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start `argv` with more variables of the environment, and append its output to `log`. Raises OSError if the
        program cannot be executed."""
        self._log = log
        self._lock = threading.Lock()
        self._popen = _spawner(os.getpid()).submit(_spawn, _dying_with_us(argv), log, environment or {}).result()

    @property
    def pid(self) -> int:
        """The server's own pid: nothing wraps it."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """True if it runs or is paused."""
        with self._lock:
            return self._popen.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone. Does nothing to one that is gone."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and answers nothing. Returns when all its threads have stopped."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: not self.alive or _is_stopped(self.pid), timeout_ms=_PAUSE_MS)

    def resume(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)

    def stop(self, *, grace_ms: int) -> int:
        """Send SIGTERM, and SIGKILL if it still runs after `grace_ms`. Return its exit code; negative: a signal."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            return self._popen.wait(grace_ms / 1000)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log, without the ends of long ones."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(line[:300] for line in text.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing to one that is gone."""
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
        """Hold all of them, or none."""
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
    """Ask `condition` until it holds. Return False if it did not within `timeout_ms`."""
    deadline = time.monotonic() + timeout_ms / 1000
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_stopped(pid: int) -> bool:
    """Return True if the kernel has stopped all of its threads: the signal alone only asks for it."""
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


def _spawn(argv: list[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # The lab reads the lines of its hosts, so their configuration alone says how these look.
    environment = {name: value for name, value in os.environ.items() if name != "FOQS_LOG__FORMAT"}
    environment |= more
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


def initialise(name: str, argv: Sequence[str], folder: Path) -> None:
    """Run the command that makes an empty data directory in `folder`.

    Raises ServerUnavailable if it cannot be run, fails, or takes more than two minutes.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_INITIALISE_TIMEOUT_S, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"{name} cannot make a data directory: {error}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ServerUnavailable(f"{name} made no data directory (exit status {done.returncode})", log_tail=tail)


class Restartable:
    """A program that runs as one process, and may be started again. RuntimeError means that it was not started."""

    _process: ServerProcess | None = None

    def kill(self) -> None:
        """Send SIGKILL. Returns when the process is gone."""
        self._started().kill()

    def pause(self) -> None:
        """Send SIGSTOP: the process hangs with all its connections open."""
        self._started().pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._started().resume()

    @property
    def pid(self) -> int:
        """The pid of the program itself."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """True if the process exists, paused or not."""
        return self._process is not None and self._process.alive

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self} was not started")
        return self._process


class PrivateServer(Restartable, ABC):
    """A server on a free loopback port, with its files in a temporary directory. A context manager.

    One thread starts and stops it; any thread may kill, pause and resume it.
    """

    name = ""
    question = b""
    answer: tuple[bytes, ...] = (b"",)
    """What `answers` sends to the port, and how the reply begins."""
    grace_ms, start_ms = 10_000, 60_000

    def __init__(self, *, parent: Path | None = None) -> None:
        """Start nothing yet. The directory is made below `parent`, by default the system's for temporary files."""
        self.port = 0
        self.version = ""
        self._parent = parent
        self._directory: Path | None = None

    @abstractmethod
    def prepare(self, directory: Path) -> None:
        """Find the program, note its version, and make its files. Raises ServerUnavailable."""

    @abstractmethod
    def argv(self, directory: Path) -> Sequence[str]:
        """Return the command that serves `directory` on `port`."""

    def start(self) -> Self:
        """Serve new data on a free port, or the same data on the same port after `stop` or `kill`.

        Raises ServerUnavailable if the program is not installed, ended, or did not answer in time.
        """
        first = self._directory is None
        try:
            directory = self._directory or self._make_directory()
            for _ in range(_PORT_ATTEMPTS if first else 1):
                self.port = free_port() if first else self.port
                if self._serve(directory):
                    return self
            raise ServerUnavailable(f"{self.name} did not start", log_tail=self._started().log_tail())
        except BaseException:
            self.close() if first else self.stop()
            raise

    def stop(self) -> None:
        """End the process, paused or not, and keep its data. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=self.grace_ms)

    def close(self) -> None:
        """End the process, and remove its files. May be called twice."""
        self.stop()
        self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def answers(self) -> bool:
        """Return True if it serves clients now."""
        return self.says(self.question, self.answer)

    def says(self, question: bytes, answer: tuple[bytes, ...]) -> bool:
        """Return True if the reply to `question` begins with `answer`."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(question)
                return client.recv(64).startswith(answer)
        except OSError:
            return False

    def _is_up(self) -> bool:
        return self.answers()

    def _serve(self, directory: Path) -> bool:
        """Start the process and wait for it. False if it ended, for example because another program has the port."""
        self.stop()
        process = self._process = ServerProcess(self.argv(directory), log=directory / "log")
        up = wait_until(lambda: not process.alive or self._is_up(), timeout_ms=self.start_ms)
        if up and process.alive:
            return True
        process.kill()
        return False

    def _make_directory(self) -> Path:
        # Not resolved, a link in the path would make @@datadir differ from the requested folder.
        made = self._directory = Path(tempfile.mkdtemp(prefix=f"foqs-{self.name}-", dir=self._parent)).resolve()
        self.prepare(made)
        return made

    def __enter__(self) -> Self:
        return self if self._directory is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
