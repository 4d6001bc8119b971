"""How the supervisor stops one worker, with a simulated process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.cli import supervisor
from foqs.config.load import load
from foqs.errors import Invalid


class Played:
    """A process that exits by itself just before kill(), which then raises ProcessLookupError."""

    pid = 1

    def __init__(self) -> None:
        self.stdin = self.stdout = self
        self._ended = asyncio.Event()

    def write(self, _order: bytes) -> None: ...

    def close(self) -> None: ...

    def __aiter__(self) -> Played:
        return self

    async def __anext__(self) -> bytes:
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
    monkeypatch.setattr(supervisor, "_END_S", 0.01)
    config = load(server={"id": "a", "port": 7000, "grace_ms": 1}, zookeeper={"hosts": "z:1"})

    async def work() -> None:
        keeper = supervisor._Keeper(config, 1, 7000, lambda _: None)
        keeping = asyncio.ensure_future(keeper.run())
        await asyncio.sleep(0)
        keeper.stop.set()
        await keeping

    with pytest.raises(Invalid, match="a-1 did not stop in order: status 3"):
        asyncio.run(work())
