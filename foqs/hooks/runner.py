"""The process that runs scripts. Its one open file is the socket to its host.

Each script has a Lua state of its own, so that no script sees what another one defines. A state that met its time-out
or its memory bound is not used again.
"""

from __future__ import annotations

import signal
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from foqs.hooks.frames import FLUSH_CALLS, SANDBOX_BYTES, SLICE_MS, FrameReader, framed, text_of
from foqs.hooks.lockdown import confine, limit

SANDBOX = Path(__file__).with_name("sandbox.lua")
_MESSAGE_BYTES = 64 << 20
_RECEIVE_BYTES = 1 << 18
_STATES_BYTES = 96 << 20
"""Memory of all Lua states together, above which those used least recently end."""
_PAIRS = 100
_ALARM_S = 10.0
"""A process that is stuck for this time ends, also if its host is gone. A message takes far less."""

Reply = list[Any]
"""[elapsed_us, memory_bytes, fields], or [elapsed_us, memory_bytes, kind, text]."""


class Vm:
    """The Lua state of one script."""

    def __init__(self, sandbox: str, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lua = LuaRuntime(max_memory=0, register_eval=False, register_builtins=False)
        (
            self._start, self._clear_entries, self._give_entries, self._give_item, self._run, self._late
        ) = self._lua.execute(sandbox)  # fmt: skip
        self._clear_entries()  # collects garbage of the start
        self._empty_bytes: int = self._lua.get_memory_used()
        self._base_bytes = self._empty_bytes
        self._entries = 0

    @property
    def total_bytes(self) -> int:
        used: int = self._lua.get_memory_used(total=True)
        return used

    def start(self, source: str, name: str, timeout_ms: int) -> Reply | None:
        """Run the script, which defines its functions. Return the reply of a failure."""
        return self._replied(lambda: self._start(source, name, timeout_ms / 1000), timeout_ms, self._started)

    def give_entries(self, number: int, entries: Mapping[str, str]) -> None:
        """Set what `foqs.get` reads, unless it is `number` already. They do not count as the script's memory."""
        if number == self._entries:
            return
        self._lua.set_max_memory(0)
        self._clear_entries()
        before_bytes = self._lua.get_memory_used()
        for part in _parts(entries):
            self._give_entries(*part)
        self._base_bytes = self._empty_bytes + self._lua.get_memory_used() - before_bytes
        self._entries = number

    def call(self, hook: str, item: Mapping[str, Any], timeout_ms: int) -> Reply:
        self._lua.set_max_memory(0)
        try:
            self._give_item(*_flat(item))
        except UnicodeEncodeError:
            return [0, 0, "invalid", "the item has text that is not UTF-8"]
        reply = self._replied(partial(self._run, hook, timeout_ms / 1000), timeout_ms, _fields)
        assert reply is not None
        return reply

    def _replied(self, run: Callable[[], Any], timeout_ms: int, converted: Callable[[Any], Any | None]) -> Reply | None:
        lua = self._lua
        lua.set_max_memory(self._base_bytes + self._memory_bytes)
        began_ns = perf_counter_ns()
        failure: tuple[str, str] | None = None
        returned: Any = None
        try:
            returned = run()
        except (LuaMemoryError, MemoryError):
            failure = "memory", ""
        except UnicodeDecodeError:
            failure = "invalid", "the script returned text that is not UTF-8"
        except LuaError as error:
            failure = "error", str(error)[:300]
        elapsed_us = (perf_counter_ns() - began_ns) // 1000
        used_bytes = max(0, lua.get_memory_used() - self._base_bytes)
        if elapsed_us > timeout_ms * 1000 and failure is None and self._late():
            failure = "timeout", ""
        if failure is None and type(returned) is tuple and returned[0] != "ok":
            failure = returned[0], returned[1]
        elif failure is None and type(returned) is str and returned != "ok":
            failure = returned, ""
        if failure is None:
            fields = converted(returned)
            return None if fields is None else [elapsed_us, used_bytes, fields]
        kind, text = failure
        if kind == "timeout":
            text = f"the script took more than {timeout_ms} ms of processor time"
        elif kind == "memory":
            text = f"the script took more than {self._memory_bytes} bytes of memory"
        return [elapsed_us, used_bytes, kind, text]

    @staticmethod
    def _started(_: Any) -> None:
        return None


def _parts(entries: Mapping[str, str]) -> Iterator[list[str]]:
    flat = [text for pair in entries.items() for text in pair]
    for at in range(0, len(flat), 2 * _PAIRS):
        yield flat[at : at + 2 * _PAIRS]


def _flat(item: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of `give_item`."""
    flat: list[Any] = [0]
    tables: list[Any] = []
    for name, value in item.items():
        if value.__class__ is dict:
            tables += name, len(value), *chain.from_iterable(value.items())
        elif value is not None:
            flat += name, value
    flat[0] = len(flat) // 2
    flat += tables
    return flat


def _fields(returned: tuple[Any, ...]) -> dict[str, Any]:
    """Return the fields of a result of `run`."""
    at = 2 + 2 * returned[1]
    fields = dict(zip(returned[2:at:2], returned[3:at:2], strict=True))
    while at < len(returned):
        end = at + 2 + returned[at + 1]
        fields[returned[at]] = list(returned[at + 2 : end])
        at = end
    return fields


def _message(replies: Sequence[Reply], left: int) -> list[Any]:
    """Return the message with these replies. Calls with the same fields are sent as columns: one list a field."""
    first = replies[0][2].keys() if len(replies[0]) == 3 else None
    if first is None or [reply for reply in replies if len(reply) > 3 or reply[2].keys() != first]:
        return ["results", replies, left]
    elapsed_us, memory_bytes, fields = zip(*replies, strict=True)
    names = list(first)
    return ["columns", elapsed_us, memory_bytes, names, [[one[name] for one in fields] for name in names], left]


class Runner:
    """Keeps the scripts and settings that its host names by numbers, and runs calls in their order."""

    def __init__(self, sandbox: str, memory_bytes: int, send: Callable[[str], None]) -> None:
        self._sandbox = sandbox
        self._memory_bytes = memory_bytes
        self._send = send
        self._scripts: dict[int, tuple[str, str]] = {}
        self._entries: dict[int, Mapping[str, str]] = {0: {}}
        self._vms: OrderedDict[int, Vm] = OrderedDict()

    def take(self, message: Any) -> None:
        match message:
            case ["script", number, name, source]:
                self._scripts[number] = name, source
            case ["entries", number, entries]:
                self._entries[number] = entries
            case ["forget_script", number]:
                del self._scripts[number]
                self._vms.pop(number, None)
            case ["forget_entries", number]:
                del self._entries[number]
            case ["run", script, entries, hook, timeout_ms, names, columns, count]:
                rows = zip(*columns, strict=True) if columns else [()] * count
                items = [dict(zip(names, row, strict=True)) for row in rows]
                self._run(script, entries, hook, timeout_ms, items)
            case _:
                raise ValueError("an unknown message")

    def _run(self, script: int, entries: int, hook: str, timeout_ms: int, items: list[Any]) -> None:
        """Send a result for each item, in parts. After a time-out, a memory failure or the slice, items are left."""
        replies: list[Reply] = []
        ends_ns = perf_counter_ns() + SLICE_MS * 1_000_000
        for at, item in enumerate(items, 1):
            reply = self._call(script, entries, hook, timeout_ms, item)
            replies.append(reply)
            broken = len(reply) > 3 and reply[2] in ("timeout", "memory")
            if broken:
                self._vms.pop(script, None)
            if at < len(items) and (broken or perf_counter_ns() >= ends_ns):
                break
            if len(replies) == FLUSH_CALLS:
                self._send(text_of(_message(replies, 0)))
                replies = []
                ends_ns = perf_counter_ns() + SLICE_MS * 1_000_000
        if replies:
            self._send(text_of(_message(replies, len(items) - at)))

    def _call(self, script: int, entries: int, hook: str, timeout_ms: int, item: Any) -> Reply:
        vm = self._vms.get(script)
        if vm is None:
            vm = Vm(self._sandbox, self._memory_bytes)
            name, source = self._scripts[script]
            failure = vm.start(source, name, timeout_ms)
            if failure is not None:
                return failure
            self._vms[script] = vm
            self._bound()
        else:
            self._vms.move_to_end(script)
        vm.give_entries(entries, self._entries[entries])
        return vm.call(hook, item, timeout_ms)

    def _bound(self) -> None:
        total_bytes = sum(vm.total_bytes for vm in self._vms.values())
        while total_bytes > _STATES_BYTES and len(self._vms) > 1:
            _, oldest = self._vms.popitem(last=False)
            total_bytes -= oldest.total_bytes


def main(memory_bytes: int) -> None:
    """Serve the socket that is the standard input until the host closes it."""
    host = socket.socket(fileno=0)
    runner = Runner(SANDBOX.read_text(), memory_bytes, lambda text: host.sendall(framed(text)))
    reader = FrameReader(_MESSAGE_BYTES)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # for the host, which lets requests in flight end
    Vm(SANDBOX.read_text(), memory_bytes)  # imports and allocations of the first use
    limit(SANDBOX_BYTES)
    host.sendall(framed(text_of(["hello", confine()])))
    while data := host.recv(_RECEIVE_BYTES):
        for message in reader.feed(data):
            signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
            runner.take(message)
            signal.setitimer(signal.ITIMER_REAL, 0)
