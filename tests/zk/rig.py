"""Real stores on a real ZooKeeper, and their faults."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from foqs.config.schema import ZookeeperSection
from foqs.zk.client import ZkFactStore
from foqs_lab.servers import ZookeeperServer
from tests.support.waiting import wait_until

_NOWHERE = "127.0.0.1:1"
_roots = itertools.count(1)


class ZookeeperRig:
    """One cluster below a root of its own. The loop runs only in `until` and `turn`: stores are called in between."""

    def __init__(self, server: ZookeeperServer) -> None:
        self.server = server
        self.hosts = server.hosts
        # No folder above it: an ACL that one test creates would keep other tests out.
        self.root = f"/tests-{os.getpid()}-{next(_roots)}"
        self.loop = asyncio.new_event_loop()
        self.stores: list[ZkFactStore] = []
        self._folders: list[Path] = []

    def config(self, **settings: object) -> ZookeeperSection:
        return ZookeeperSection.model_validate(
            {"hosts": self.hosts, "root": self.root, "session_timeout_ms": 60_000} | settings
        )

    def store(self, session_ms: int = 60_000, **settings: object) -> ZkFactStore:
        self.stores.append(ZkFactStore(self.config(session_timeout_ms=session_ms, **settings), self.loop))
        return self.stores[-1]

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(condition, pause=lambda seconds: self.loop.run_until_complete(asyncio.sleep(seconds)))

    def kazoo(self, store: ZkFactStore) -> KazooClient:
        client = store._link._client
        assert client is not None
        return client

    def cut(self, store: ZkFactStore, hosts: str = _NOWHERE) -> None:
        """Ends its connection. `hosts`: where it looks for the next one."""
        client = self.kazoo(store)
        client.set_hosts(hosts)
        client._connection._socket.shutdown(socket.SHUT_RDWR)

    def mend(self, store: ZkFactStore) -> None:
        self.kazoo(store).set_hosts(self.hosts)

    def expire(self, store: ZkFactStore) -> None:
        """Another client takes over the session, and closes it. One that was cut stays so."""
        client = self.kazoo(store)
        before = [f"{name}:{port}" for name, port in client.hosts]
        client.set_hosts(_NOWHERE)  # or it would be back, and have the session, before that is closed
        with_it = KazooClient(self.server.hosts, client_id=(client._session_id, client._session_passwd))
        with_it.start()
        with_it.stop()
        with_it.close()
        client.set_hosts(before)

    def stands(self, store: ZkFactStore, host: str) -> bool:
        return any(host == candidate for _, candidate in store._view.election.values)

    def lose(self) -> None:
        self.server.lose()
        self.server.start()

    def copy(self) -> Callable[[], None]:
        folder = Path(tempfile.mkdtemp(prefix="foqs-copy-"))
        self._folders.append(folder)
        self.server.copy_data(folder / "data")

        def put_back() -> None:
            self.server.put_back(folder / "data")
            self.server.start()

        return put_back

    def close(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder)
        closed: list[bool] = []
        for store in self.stores:
            store.close(lambda: closed.append(True))
        self.until(lambda: len(closed) == len(self.stores))
        self.loop.close()
