"""Hosts as users run them: a process of `python -m foqs`, its output, its memory, and how it ends."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import forked
from tests.support.waiting import wait_until as until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
_LISTENING = re.compile(r"""(?:.*")?foqs listening on (.+):(\d+)(?:".*)?""")  # as text, or in a line of JSON
_FAULTS = (
    "Traceback",
    "handler.failed",
    "loop.failed",
    "thread.failed",
    "process.failed",
    "shard.crashed",
    "internal error",
    "Error:",
)


def environment(**settings: str) -> dict[str, str]:
    """This process's, with no FOQS_* of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOQS_")}
    return {**kept, "PYTHONPATH": str(ROOT), **settings}


def foqs(
    *args: str | Path, env: Mapping[str, str] | None = None, stdin: str = "", patience_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    words, settings = [*map(str, args)], environment(**(env or {}))
    if _starts_an_interpreter(words, env or {}):
        argv = [sys.executable, "-m", "foqs", *words]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, env=settings, timeout=patience_s)
    done = forked.run(words, settings, stdin.encode(), patience_s)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def foqs_lab(
    *args: str | Path, env: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of the laboratory to its end."""
    argv = [sys.executable, "-m", "foqs_lab", *map(str, args)]
    settings = environment(**(env or {}))
    return subprocess.run(argv, capture_output=True, text=True, env=settings, timeout=patience_s)


_WITH_CHILDREN = {"spark", "demo"}
"""Commands that need imports that no other command does."""


def _starts_an_interpreter(args: Sequence[str], env: Mapping[str, str]) -> bool:
    return args[0] in _WITH_CHILDREN or any(name.startswith("PYTHON") for name in env)


def start(
    args: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str] | None = None, **options: bool
) -> "subprocess.Popen[bytes] | forked.Forked":
    """Start `foqs ARGS`: an interpreter if `env` has settings for one or the command needs one, otherwise a fork."""
    settings = environment(**(env or {}))
    if not _starts_an_interpreter(args, env or {}):
        return forked.Forked(args, [stdin, stdout, stderr], settings, **options)
    argv = [sys.executable, "-m", "foqs", *args]
    return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=settings, **options)


PATIENT = {
    "FOQS_HOST__MERGE_WAIT_MS": "60000",
    "FOQS_HOST__CONFIRM_MS": "60000",
    "FOQS_BREAKER__HANG_MS": "60000",
    "FOQS_BREAKER__MEAN_LATENCY_MS": "60000",
    "FOQS_SERVER__GRACE_MS": "60000",
}
"""For a host that leaves out no shard of its answers, however long a busy machine takes for a page or a commit. By
default it goes on without one that is late, so what a single answer holds, and in which order, is up to the machine."""


class HostProcess:
    """`python -m foqs ARGS`, started at once. A context manager: kills the process at its end, if it still runs."""

    def __init__(self, log: Path, args: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.lines: list[str] = []
        read, write = os.pipe()
        with log.open("ab") as stderr, open(write, "w") as stdout, open(os.devnull) as nothing:
            self._begun = stderr.tell()  # behind what another process wrote there
            self.process = start(
                [*map(str, args)], nothing.fileno(), stdout.fileno(), stderr.fileno(), env, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, args=[read], daemon=True)
        self._reader.start()

    def _read(self, stdout: int) -> None:
        with open(stdout) as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def listening(self) -> bool:
        return bool(self.lines)

    @property
    def address(self) -> tuple[str, int]:
        """Waits for the line that says where it listens."""
        until(lambda: bool(self.lines) or not self.running, f"the host's address; it said: {self.said()}")
        assert self.lines, f"the host ended with {self.process.returncode}: {self.said()}"
        found = _LISTENING.fullmatch(self.lines[0])
        assert found is not None, self.lines
        return found[1], int(found[2])

    def said(self) -> str:
        """The text on stderr so far. While the process runs, only whole lines: a line that crosses a page of the file
        is incomplete for a moment."""
        running = self.running
        written = self.log.read_bytes()[self._begun :]
        return written[: written.rfind(b"\n") + 1 if running else None].decode(errors="replace")

    def faults(self) -> list[str]:
        """Lines of its log that should never be there."""
        return [line for line in self.said().splitlines() if any(fault in line for fault in _FAULTS)]

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit code; all it printed is in `lines` then."""
        code = self.process.wait(patience_s)
        self._reader.join(patience_s)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """At once, without a chance to do anything."""
        if self.running:
            self.process.kill()
        self.wait()

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        return self._status("VmHWM") * 1024

    def threads(self) -> int:
        return self._status("Threads")

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        raise KeyError(key)

    def __enter__(self) -> "HostProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def dev(directory: Path, *options: str, **env: str) -> HostProcess:
    """`foqs dev` on the shards in `directory`, on a port of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    return HostProcess(directory / "log", ["dev", "--data-dir", directory / "data", "--port", "0", *options], env)


@contextmanager
def locked(tmp_path: Path, *shards: int) -> Iterator[None]:
    """`dev(tmp_path)`: no other test writes these shards."""
    with ExitStack() as stack:
        for shard in shards:
            connection = sqlite3.connect(tmp_path / "data" / f"shard-{shard}.db", timeout=30, isolation_level=None)
            stack.callback(connection.close)
            connection.execute("BEGIN IMMEDIATE")
        yield
