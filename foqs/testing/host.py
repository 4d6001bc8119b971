"""A host in the process of a test: the product's node, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import structlog
import uvloop
from sqlalchemy import event

from foqs.checks import LONGEST_MS, host_port
from foqs.config.load import Config
from foqs.config.schema import LogSection, ServerSection, ShardSection
from foqs.errors import FoqsError
from foqs.opened import Opened
from foqs.rpc.call import Call
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from foqs.testing.time import MovedTime

T = TypeVar("T")

_EPOCH_DAYS = 2_440_587.5
"""The Julian day of 1970-01-01."""
_DAY_MS = 86_400_000
_BEFORE_MS = 60_000
"""A host serves for this time before the test begins, so throttles have the tokens of their bursts."""
_START_S = 30.0
_SCRIPT_S = 0.001
_PREFIX = "foqs-testing-"
_THREAD = "foqs-testing"


def _without_news(_logger: Any, method: str, entry: Any) -> Any:
    """Leave out what a host logs about its life, in a process that has not said how it logs."""
    if method in ("debug", "info") and threading.current_thread().name == _THREAD:
        raise structlog.DropEvent
    return entry


class Store(SqlStore):
    """A shard in a SQLite file that never waits for a disk. Its clock is the test's."""

    def __init__(self, url: str, now_ms: Callable[[], int]) -> None:
        super().__init__(url, shard=1)
        self._now_ms = now_ms

        def connected(connection: Any, _: object) -> None:
            connection.execute("PRAGMA synchronous = OFF")
            connection.create_function("julianday", 1, lambda _: _EPOCH_DAYS + now_ms() / _DAY_MS)

        event.listen(self._database.engine, "connect", connected)

    def open(self, *args: Any, **kwargs: Any) -> Opened:
        # It reads the clock over another connection, and warns of a disk that need not be waited for.
        return replace(super().open(*args, **kwargs), db_now_ms=self._now_ms(), warnings=[])


class NoJitter(Random):
    """A host asks for tokens of throttles up to 10 ms late, by chance."""

    def random(self) -> float:
        return 0.0


@cache
def _empty_shard() -> bytes:
    """Return the file of a shard without items: to make one takes several writes to a disk."""
    with TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "shard.db"
        create_schema(f"sqlite:///{path}", 1)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE shard SET identity = x''")  # each copy gets its own
            connection.commit()
        return path.read_bytes()


class MemoryHost:
    """Serves from its making until `close`. Its methods are called from any thread."""

    def __init__(self, now_ms: int) -> None:
        self._processors: list[Any] = []
        if not structlog.is_configured():
            self._processors = [_without_news, *structlog.get_config()["processors"]]
            structlog.configure(processors=self._processors)
        self._folder = TemporaryDirectory(prefix=_PREFIX)
        self._path = Path(self._folder.name) / "shard.db"
        self._loop = uvloop.new_event_loop()
        self._moving = threading.Lock()
        self.time = MovedTime(self._loop, now_ms - _BEFORE_MS)
        self._thread = threading.Thread(target=self._loop.run_forever, name=_THREAD, daemon=True)
        self._thread.start()
        self._port = 0
        try:
            self.address = self._run(self._start())
        except BaseException:
            self._end()
            raise

    def advance(self, by_ms: int) -> None:
        with self._moving:
            self._run(self.time.advance(by_ms, self._settle, self._quiet_ms))

    def restart(self) -> None:
        """Serve a new shard on the same port. The time stays."""
        with self._moving:
            self._run(self._restart())

    def close(self) -> None:
        self._run(self._node.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()
        if self._processors and structlog.get_config()["processors"] is self._processors:
            structlog.reset_defaults()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> str:
        self._path.write_bytes(_empty_shard())
        url = f"sqlite:///{self._path}"
        config = Config(
            server=ServerSection(port=self._port, grace_ms=0, idle_connection_ms=LONGEST_MS, frame_read_ms=LONGEST_MS),
            log=LogSection(slow_request_ms=0),
            shards=(ShardSection(id=1, url=url),),
        )
        self._node = Node(
            config, lambda _: Store(url, self.time.now_ms), clock=self.time, timers=self.time, rng=NoJitter()
        )
        self._node.pulse.end()  # the silence of a file would be looked for ten times a second
        handlers = self._node.server.handlers
        handlers.update({method: partial(self._handle, handle) for method, handle in handlers.items()})
        async with asyncio.timeout(_START_S):
            host, self._port = await self._node.start()
        await self.time.advance(_BEFORE_MS, self._settle)
        return host_port(host, self._port)

    async def _restart(self) -> None:
        await self._node.stop()
        self.time.go_back(_BEFORE_MS)
        for path in self._path.parent.iterdir():
            path.unlink()
        await self._start()

    # ------------------------------------------------------------------------------------- long polls

    def _handle(self, handle: Callable[[Call], None], call: Call) -> None:
        """Answer a long poll after its wait in real time: the clock of the host may stand still."""
        handle(call)
        if not call.answered and (wait_ms := getattr(call.request, "wait_ms", None)):
            self._loop.call_later(wait_ms / 1000, self._end_wait, handle, call)

    @staticmethod
    def _end_wait(handle: Callable[[Call], None], call: Call) -> None:
        if call.on_oneway is not None:
            call.on_oneway()
        elif call.on_lost is not None:
            call.on_lost()
            call.request.wait_ms = None
            try:
                handle(call)
            except FoqsError as error:
                call.fail(error)

    # ------------------------------------------------------------------------------------- progress

    async def _settle(self) -> None:
        """Wait until the host has done all that it does at this time."""
        while self.time.turns or self._busy():
            await asyncio.sleep(_SCRIPT_S if self._node.hook_pool.busy else 0)
            for number in self._in_flight():
                done = self._loop.create_future()
                self._node.runner.workers()[number].call(lambda _: None, done.set_result)  # after the batch
                await done

    def _quiet_ms(self) -> int:
        """Return when there is work but that of each second."""
        engine, scheduler = self._node.engine, self._node.service.scheduler
        scheduled = sum(map(len, engine.state.policies.schedules.values()))
        if engine.state.waiting or len(scheduler.here) != scheduled:
            return 0
        beats = scheduler.beat, self._node.runner.ticker.tick
        return min(engine.due_ms(self.time.now_ms(), looks=False), scheduler.next_ms, self.time.due_ms(without=beats))

    def _busy(self) -> bool:
        state = self._node.engine.state
        slices, scripts = state.slices, self._node.hook_pool
        here = state.dirty or state.due or slices.next_slice or slices.long_work
        return bool(here or self._in_flight() or scripts.busy)

    def _in_flight(self) -> list[int]:
        return [shard.number for shard in self._node.engine.state.serving if shard.queue.in_flight is not None]
