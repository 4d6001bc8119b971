"""Queues for node: graphile-worker on PostgreSQL, BullMQ on Redis. Their clients are node programs in this folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from foqs_lab.bench.clients import Client, NodeClient, Shape
from foqs_lab.bench.rivals.rival import Rival
from foqs_lab.servers import PostgresqlServer, RedisServer
from foqs_lab.servers.programs import find_node, find_rival_package

_HERE = Path(__file__).parent


class _NodeRival(Rival):
    """Clients are two processes for a pair, and one for the callers: node serves many connections in one process."""

    package: str
    program: str

    def __init__(self, server: PostgresqlServer | RedisServer) -> None:
        self._server = server
        self._node = ""
        self._modules = ""
        self._queues = 0

    def start(self) -> None:
        self._node = find_node()
        package = find_rival_package("node", f"node_modules/{self.package}")
        self._modules = str(package.parent)
        version = json.loads((package / "package.json").read_text())["version"]
        self._server.start()
        self.version = f"{version} on {self._server.version}"

    def close(self) -> None:
        self._server.close()

    def servers(self) -> dict[str, int]:
        return {"server": self._server.pid}

    def pair(self, shape: Shape) -> Sequence[Client]:
        self._fresh()
        return [
            self._client("produce", shape, shape.producers),
            self._client("consume", shape, shape.consumers),
        ]

    def callers(self, shape: Shape) -> Sequence[Client]:
        self._fresh()
        return [self._client("call", shape, shape.producers)]

    def _fresh(self) -> None:
        """Name a queue that nothing has used."""
        self._queues += 1

    def _client(self, role: str, shape: Shape, connections: int) -> NodeClient:
        job = {
            "role": role,
            "modules": self._modules,
            "port": self._server.port,
            "queue": f"bench-{self._queues}",
            "connections": connections,
            "items": shape.items,
            "batch": shape.batch,
            "payload_bytes": shape.payload_bytes,
        }
        return NodeClient(self._node, _HERE / self.program, job)


class GraphileWorker(_NodeRival):
    name = "graphile_worker"
    title = "graphile-worker"
    package = "graphile-worker"
    program = "graphile_worker.cjs"

    def __init__(self) -> None:
        super().__init__(PostgresqlServer())

    def _fresh(self) -> None:
        """Make the tables again: graphile-worker has one queue for each schema."""
        super()._fresh()
        with self._client("prepare", Shape(0), 1) as client:
            client.ready()


class BullMq(_NodeRival):
    name = "bullmq"
    title = "BullMQ"
    package = "bullmq"
    program = "bullmq.cjs"

    def __init__(self) -> None:
        super().__init__(RedisServer())
