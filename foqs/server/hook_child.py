"""One process with scripts: start, messages over a socket, the watch over its calls, and its end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from foqs.hooks.call_queues import Portion, Waiting
from foqs.hooks.dispatcher import Columns, Replies
from foqs.hooks.frames import REPLY_BYTES, SLICE_MS, FrameError, FrameReader, framed

GRACE_MS = 50
"""A call without a result this long beyond its budget is stuck, and its process is killed."""
_RECEIVE_BYTES = 1 << 18
_STARVED_MS = 1_000
"""A process that got no processor for this time is killed, too."""
_CPU_SLACK_MS = 25
_LOOK_AGAIN_MS = 10
_START_MS = 20_000
_REAP_S = 0.01
_USEFUL_S = 60.0
_NICE = 10
_BOOT = "import sys; sys.path += sys.argv[2:]; from foqs.hooks.runner import main; main(int(sys.argv[1]))"


def _length(column: Any) -> int:
    return len(column) if column.__class__ is list else -1


def lupa_folder() -> str | None:
    """Return the folder to import lupa from; None if it is not installed. It is not imported here."""
    try:
        found = importlib.util.find_spec("lupa.lua54")
    except (ImportError, ValueError):
        return None
    return None if found is None or found.origin is None else str(Path(found.origin).parent.parent)


class HookChild:
    """`on_results` gets a portion with the calls and their replies; the portion has ended when no calls are in flight
    for it. `left`: calls that the process did not run. `on_end` is called once, and says whether the host killed the
    process for a stuck call; `in_flight` has the calls without a reply.

    The process inherits nothing but its end of the socket, and no environment."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lupa: str,
        memory_bytes: int,
        *,
        nice: bool,
        on_hello: Callable[[str], None],
        on_results: Callable[[Portion, list[Waiting], Replies, list[Waiting]], None],
        on_end: Callable[[HookChild, bool], None],
    ) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        self._loop = loop
        self._on_hello = on_hello
        self._on_results = on_results
        self._on_end = on_end
        self._reader = FrameReader(REPLY_BYTES)
        self._unsent = bytearray()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        foqs = str(Path(__file__).parent.parent.parent)
        command = [sys.executable, "-I", "-S", "-c", _BOOT, str(memory_bytes), foqs, lupa]
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/"
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        if nice:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)
        self.ready = False
        self.ended = False
        self.reaped = False
        self.in_flight: deque[Portion] = deque()
        self._extra_ms: deque[int] = deque()
        self.calls = 0
        self._replied = False
        self._began_s = self._since_s = loop.time()
        self._cpu_since_ms = 0.0
        self._limit_ms = float(_START_MS)
        self._watch = loop.call_later(_START_MS / 1000, self._look)
        loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def was_useful(self) -> bool:
        """Return True if the process ran calls or lived for long, so that its end is no failed start."""
        return self._replied or bool(self.in_flight) or self._loop.time() - self._began_s >= _USEFUL_S

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def send(self, portion: Portion, messages: list[str], extra_ms: int) -> None:
        """Send messages, the last of which runs the calls of `portion`. `extra_ms`: time for new scripts and
        settings."""
        self.in_flight.append(portion)
        self._extra_ms.append(extra_ms)
        self.calls += len(portion.calls)
        if len(self.in_flight) == 1:
            self._begin()
        sent = b"".join(map(framed, messages))
        if self._unsent:
            self._unsent += sent
            return
        try:
            count = self._socket.send(sent)
        except BlockingIOError:
            count = 0
        except OSError:  # the process ended: its end is read next
            return
        if count < len(sent):
            self._unsent += sent[count:]
            self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def end(self, *, killed: bool = False) -> None:
        """Kill the process."""
        if self.ended:
            return
        self.ended = True
        self.ready = False
        self._watch.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._reap()
        self._on_end(self, killed)

    def _reap(self) -> None:
        if self._process.poll() is None:
            self._loop.call_later(_REAP_S, self._reap)
        else:
            self.reaped = True

    def _send_rest(self) -> None:
        try:
            count = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            count = len(self._unsent)
        del self._unsent[:count]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        try:
            for message in self._reader.feed(data):
                self._take(message)
                if self.ended:
                    return
        except FrameError:
            self.end()

    def _take(self, message: Any) -> None:
        match message:
            case ["hello", str(confinement)] if not self.ready:
                self.ready = True
                self._watch.cancel()
                self._on_hello(confinement)
            case ["results", list(replies), int(left)] if self.in_flight:
                self._results(replies, len(replies), left)
            case ["columns", list(elapsed_us), list(memory_bytes), list(names), list(values), int(left)] if (
                self.in_flight and {len(memory_bytes), *map(_length, values)} == {len(elapsed_us)}
            ):
                self._results(Columns(elapsed_us, memory_bytes, names, values), len(elapsed_us), left)
            case _:
                raise FrameError("an unknown message")

    def _results(self, replies: Replies, count: int, left: int) -> None:
        portion = self.in_flight[0]
        calls, rest = portion.calls[:count], portion.calls[count:]
        if not count or len(calls) < count or left not in (0, len(rest)):
            raise FrameError("results of other calls")
        self._replied = True
        portion.calls = [] if left else rest
        self.calls -= len(calls) + left
        self._watch.cancel()
        if not portion.calls:
            self.in_flight.popleft()
            self._extra_ms.popleft()
        if self.in_flight:
            self._begin()
        self._on_results(portion, calls, replies, rest if left else [])

    # ------------------------------------------------------------------------------------- the watch

    def _begin(self) -> None:
        """Watch over the first portion."""
        portion = self.in_flight[0]
        self._since_s = self._loop.time()
        self._cpu_since_ms = self._cpu_ms()
        self._limit_ms = SLICE_MS + portion.timeout_ms + GRACE_MS + self._extra_ms[0]
        self._watch.cancel()
        self._watch = self._loop.call_later(self._limit_ms / 1000, self._look)

    def _look(self) -> None:
        """Kill a process whose call is stuck, and one that did not start."""
        if self.ready:
            self._receive()  # a loop that was late has results to read
        if self.ended or (self.ready and not self.in_flight):
            return
        silent_ms = (self._loop.time() - self._since_s) * 1000
        left_ms = self._limit_ms - silent_ms
        if self.ready and left_ms <= 0:
            # A busy machine gives it less than its time: only a process that had the processor is stuck.
            starved = self._cpu_ms() - self._cpu_since_ms < self._limit_ms - _CPU_SLACK_MS
            left_ms = _LOOK_AGAIN_MS if starved and silent_ms < self._limit_ms + _STARVED_MS else 0
        if left_ms > 0:
            self._watch.cancel()
            self._watch = self._loop.call_later(left_ms / 1000, self._look)
        else:
            self.end(killed=self.ready)

    def _cpu_ms(self) -> float:
        """Return the processor time of the process. Where the system does not tell, it is the time of the clock."""
        if not sys.platform.startswith("linux"):
            return self._loop.time() * 1000
        try:
            return time.clock_gettime((~self.pid << 3) | 2) * 1000
        except OSError:
            return 0.0
