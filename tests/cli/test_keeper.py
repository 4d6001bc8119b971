"""How the supervisor stops one worker, with a simulated process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from foqs.cli.keeper import Keeper
from foqs.errors import Invalid


class Played:
    """A process that exits by itself just before kill(), which then raises ProcessLookupError. It writes the
    lines `said` before."""

    pid = 1

    def __init__(self, *said: bytes) -> None:
        self._said = list(said)
        self.stdin = self.stdout = self
        self._ended = asyncio.Event()

    def write(self, _order: bytes) -> None: ...

    def close(self) -> None: ...

    def __aiter__(self) -> Played:
        return self

    async def __anext__(self) -> bytes:
        if self._said:
            return self._said.pop(0)
        await self._ended.wait()
        raise StopAsyncIteration

    async def wait(self) -> int:
        return 3

    def kill(self) -> None:
        self._ended.set()
        raise ProcessLookupError


def test_a_worker_that_ends_just_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make(*_: object, **__: object) -> Any:
        return Played()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)

    async def work() -> None:
        keeper = Keeper("a-1", ("nothing",), lambda _: None)
        keeper.give({}, 0.01, {})
        keeping = asyncio.ensure_future(keeper.run())
        await asyncio.sleep(0)
        keeper.stop()
        await keeping

    with pytest.raises(Invalid, match="a-1 did not stop in order: status 3"):
        asyncio.run(work())


def test_a_last_line_may_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    async def make(*_: object, **__: object) -> Any:
        return Played(b'{"ends": "max_jobs"}\n', b'{"repor')

    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)

    def ended(why: str) -> None:
        said.append(why)
        keeper.stop()

    async def work() -> None:
        await keeper.run()

    keeper = Keeper("1", ("nothing",), said.append, ended=ended)
    keeper.give({}, 0.01, {})
    asyncio.run(work())
    assert said == [{"ends": "max_jobs"}, "max_jobs"]


class Ending(Played):
    """A process that writes its lines, calls `then`, and ends with `status`."""

    def __init__(self, then: Callable[[], object], status: int, *said: bytes) -> None:
        super().__init__(*said)
        self._then = then
        self._status = status

    async def __anext__(self) -> bytes:
        if self._said:
            return self._said.pop(0)
        self._then()
        raise StopAsyncIteration

    async def wait(self) -> int:
        return self._status


def test_a_refused_process_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is saved again while it is imported."""
    reasons: list[str] = []
    keeper = Keeper("1", ("nothing",), lambda _: None, ended=reasons.append)
    processes = [
        Ending(lambda: keeper.replace("reload"), 1, b'{"refused": "half saved"}\n'),
        Ending(lambda: None, 1, b'{"refused": "still wrong"}\n'),
    ]

    async def make(*_: object, **__: object) -> Any:
        return processes.pop(0)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)
    keeper.give({}, 0.01, {})
    with pytest.raises(Invalid, match="still wrong"):
        asyncio.run(keeper.run())
    assert (reasons, processes) == (["reload"], [])


@pytest.mark.parametrize("status", [-signal.SIGTERM, -signal.SIGINT])
def test_a_signal_to_the_whole_group(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """The process has no handlers yet."""
    keeper = Keeper("1", ("nothing",), lambda _: None)

    async def make(*_: object, **__: object) -> Any:
        return Ending(keeper.stop, status)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)
    keeper.give({}, 0.01, {})
    asyncio.run(keeper.run())
