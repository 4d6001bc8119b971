"""Keeps a process running: starts it again after each death, later each time, until it is asked to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from foqs.errors import Invalid

log = structlog.get_logger("foqs.processes")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0  # uptime after which a crash is not a start-up failure
END_S = 5.0  # beyond the grace: closing what a process has open
_LINE_BYTES = 1 << 20
_DIED = "died"
_IN_ORDER = (0, -signal.SIGTERM, -signal.SIGINT)
"""After a stop. A signal to the whole process group ends a process that has no handlers yet."""


class Keeper:
    """A loop that keeps one process of a module running until `stop`.

    The first line of the process's input is its order. It ends when it reads the line `farewell`, and then in order, or
    when its input ends: the supervisor closes it, or has died. Its output is JSON objects, a line each, for `heard`.
    Two of them are for this loop: {"refused": why} is a permanent error, and after {"ends": why} the end of the process
    was planned, so it is started again without a pause. `ended(why)` is called after each end that was not asked for.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        heard: Callable[[Mapping[str, Any]], None],
        *,
        farewell: bytes = b"",
        ended: Callable[[str], None] = lambda why: None,
        pass_fds: Sequence[int] = (),
        last_s: float = END_S,
    ) -> None:
        """`last_s`: a process that has read its `farewell` has this time once its input is closed."""
        self.name = name
        self._argv = argv
        self._heard = heard
        self._farewell = farewell
        self._ended = ended
        self._pass_fds = pass_fds
        self._last_s = last_s
        self._order = b""
        self._patience_s = 0.0
        self._environment: Mapping[str, str] = {}
        self._input: asyncio.StreamWriter | None = None
        self._end = asyncio.Event()
        self._at_once = asyncio.Event()
        self._stop = asyncio.Event()
        self._refused: str | None = None
        self._why: str | None = None

    def give(self, order: Mapping[str, Any], patience_s: float, environment: Mapping[str, str]) -> None:
        """Give the running process and its successors an order. A process that is asked to end has `patience_s`."""
        self._order = json.dumps(order).encode() + b"\n"
        self._patience_s = patience_s
        self._environment = environment
        if self._input is not None and not self._input.is_closing():
            self._input.write(self._order)

    def stop(self) -> None:
        """Have the process end in order, and start no other one."""
        self._stop.set()
        self._end.set()

    def hurry(self) -> None:
        """End the input of a process that has read its `farewell`."""
        self._at_once.set()

    def replace(self, why: str) -> None:
        """End the process, without its `farewell`, and start another one."""
        self._why = why
        self._at_once.set()
        self._end.set()

    async def run(self) -> None:
        """Start the process again after each end. Raises Invalid for a permanent error, and after a stop by force."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began = loop.time()
            status = await self._once()
            if self._refused is not None and (self._why is None or self._stop.is_set()):
                raise Invalid(self._refused)
            if self._stop.is_set():
                if status not in _IN_ORDER:
                    raise Invalid(f"process {self.name} did not stop in order: status {status}")
                return
            self._ended(self._why or _DIED)
            if self._why is not None:
                log.info("process.replaced", process=self.name, why=self._why)
                continue
            if loop.time() - began >= _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            log.warning("process.died", process=self.name, status=status, again_ms=int(pause_s * 1000))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._end.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _once(self) -> int | str:
        """Run the process once. Return its exit status (negative: a signal), or the reason if it could not start."""
        self._end.clear()
        self._at_once.clear()
        self._refused = self._why = None
        # A group of its own: Ctrl-C in a terminal is for the supervisor.
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._argv, stdin=PIPE, stdout=PIPE, process_group=0, limit=_LINE_BYTES,
                pass_fds=self._pass_fds, env={**os.environ, **self._environment},
            )  # fmt: skip
        except OSError as error:  # out of memory or processes: retry later
            return str(error)
        log.info("process.started", process=self.name, pid=process.pid)
        assert process.stdin is not None
        process.stdin.write(self._order)
        self._input = process.stdin
        ended = asyncio.ensure_future(self._hear(process))
        await _first(ended, self._end)
        patience_s = self._patience_s
        if self._farewell:
            process.stdin.write(self._farewell)
            await _first(ended, self._at_once, patience_s)
            patience_s = self._last_s
        process.stdin.close()
        await asyncio.wait({ended}, timeout=patience_s)
        if not ended.done():
            with suppress(ProcessLookupError):  # it ended in between
                process.kill()
        return await ended

    async def _hear(self, process: Process) -> int:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):  # it was killed while it wrote
                break
            said = json.loads(line)
            self._refused = said.get("refused", self._refused)
            self._why = said.get("ends", self._why)
            self._heard(said)
        return await process.wait()


async def _first(ended: asyncio.Future[Any], event: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for the end of the process, for the event, or for the time."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({ended, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
