"""Processes of `foqs ARGS`, forked from one process that has imported foqs.

A new interpreter spends most of a second on imports, a fork none. Each forked process has its own memory, signals,
environment, folder and streams. Tests of the start itself start an interpreter.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any, TextIO

_IMPORTED = {"foqs.cli.host", "foqs.store.maintenance", "foqs.zk.client"}
_PR_SET_PDEATHSIG = 1
# Two threads must not read the status of one process, and `start` reads that of every process.
_status = threading.Lock()
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.imported"])


class Forked:
    """A running `foqs ARGS`, used as a `subprocess.Popen`. `streams` are its stdin, stdout and stderr."""

    def __init__(
        self,
        args: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str],
        folder: Path | str = ".",
        *,
        start_new_session: bool = False,
    ) -> None:
        given = (list(args), [_Fd(fd) for fd in streams], dict(environment), str(folder), start_new_session)
        self.args = args
        self._process = _context.Process(target=_run, args=given, daemon=True)  # pytest ends those that still run
        with _status:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _status:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(list(self.args), timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended in between, as for `subprocess.Popen`
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    args: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    """Run `foqs ARGS` to its end."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = Forked(args, [given.fileno(), out.fileno(), err.fileno()], environment)
        try:
            process.wait(timeout_s)
        finally:
            process.kill()
            code = process.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["foqs", *args], code, out.read(), err.read())


Spawn = Callable[[list[str], Path, Mapping[str, str]], subprocess.Popen[bytes]]


def spawning(spawn: Spawn) -> Callable[[list[str], Path, Mapping[str, str]], subprocess.Popen[bytes] | Forked]:
    """Return what starts servers for `foqs_lab`: hosts are forked, and `spawn` starts all other programs."""
    command = [sys.executable, "-m", "foqs"]

    def start(argv: list[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
        if command[0] not in argv:
            return spawn(argv, log, more)
        program = argv[argv.index(command[0]) :]
        if program[:3] != command:
            return spawn(argv, log, more)
        environment = {name: value for name, value in os.environ.items() if name != "FOQS_LOG__FORMAT"} | more
        with open(os.devnull) as nothing, log.open("ab") as output:
            streams = [nothing.fileno(), output.fileno(), output.fileno()]
            return Forked(program[3:], streams, environment, start_new_session=True)

    return start


class _Fd:
    """A file descriptor that the forked process gets."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)  # type: ignore[attr-defined]

    def __setstate__(self, duplicate: Any) -> None:
        self.number = duplicate.detach()


def _run(args: list[str], streams: list[_Fd], environment: dict[str, str], folder: str, new_session: bool) -> None:
    assert sys.modules.keys() >= _IMPORTED, "each fork imports foqs: the import of tests.support.imported failed"
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the fork server ends with pytest
    if new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.number, number)
        os.close(stream.number)
    sys.stdin, sys.stdout, sys.stderr = (_opened(number, *one) for number, one in enumerate(_STREAMS))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["foqs", *args]
    from foqs.__main__ import main

    try:
        main()
    except KeyboardInterrupt:  # as the interpreter does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:  # in the interpreter's order
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


_STREAMS = ("r", "strict"), ("w", "strict"), ("w", "backslashreplace")


def _opened(number: int, mode: str, errors: str) -> TextIO:
    buffering = 1 if number == 2 or os.isatty(number) else -1
    return open(number, mode, buffering, encoding="utf-8", errors=errors, closefd=False)
