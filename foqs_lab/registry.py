"""ZooKeeper's facts for threads: a session of its own, on a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from foqs.config.schema import ZookeeperSection
from foqs.shardmgr.facts import Facts, Session
from foqs.shardmgr.operate import Action
from foqs.zk.client import ZkFactStore
from foqs.zk.protocol import Done, FactStore, ZkError, carry_out
from foqs_lab.servers.process import wait_until

_CONNECT_MS = 30_000


class Registry:
    """What an operator sees and asks for. A context manager."""

    def __init__(self, config: ZookeeperSection) -> None:
        """Raises TimeoutError when ZooKeeper shows no facts in half a minute."""
        self.facts = Facts()
        self._connected = False
        self._fresh = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="registry", daemon=True)
        self._thread.start()
        self._store = ZkFactStore(config, self._loop)
        self._loop.call_soon_threadsafe(self._store.start, self._changed, self._session)
        self.wait_for(lambda _: True, timeout_ms=_CONNECT_MS)

    def change(self, ask: Callable[[FactStore, Done], None]) -> None:
        """Has `ask(store, done)` change something; returns when it is done. Raises ZkError."""
        answers: SimpleQueue[ZkError | None] = SimpleQueue()
        self._loop.call_soon_threadsafe(ask, self._store, answers.put)
        error = answers.get()
        if error is not None:
            raise error

    def carry_out(self, action: Action) -> None:
        """Make a change, and return when it is done. Raises ZkError."""
        self.change(partial(carry_out, action))

    def wait_for(self, reached: Callable[[Facts], object], *, timeout_ms: int = 30_000) -> Facts:
        """The facts as soon as they are so, and were read since the last connection to ZooKeeper was made: older ones
        may say of a cluster that it is as it was. Raises TimeoutError."""
        found: list[Facts] = []

        def is_so() -> bool:
            # In this order: facts read before `_fresh` may come from an earlier connection.
            fresh = self._fresh
            found[:] = [self.facts]
            return fresh and bool(reached(found[0]))

        if not wait_until(is_so, timeout_ms=timeout_ms):
            raise TimeoutError(f"the expected facts did not arrive within {timeout_ms} ms: {self.facts}")
        return found[0]

    def close(self) -> None:
        """May be called twice."""
        if self._loop.is_closed():
            return
        closed = threading.Event()
        self._loop.call_soon_threadsafe(self._store.close, closed.set)
        closed.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _changed(self, facts: Facts) -> None:
        self.facts = facts
        self._fresh = self._connected  # facts read earlier may arrive after the connection was lost

    def _session(self, session: Session) -> None:
        self._connected, self._fresh = session is Session.CONNECTED, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
