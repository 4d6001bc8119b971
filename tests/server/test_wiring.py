"""How a host is put together: without a circle of imports, and without connections where there are no other hosts."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import foqs.server
from foqs.config.load import load
from foqs.errors import FoqsError, NotSent
from foqs.event_loop import until
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore

PACKAGE = "foqs.server"


def _imports() -> dict[str, set[str]]:
    """The modules of the package and what each imports from it, under TYPE_CHECKING as well."""
    graph: dict[str, set[str]] = {}
    for path in Path(foqs.server.__file__).parent.glob("*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[f"{PACKAGE}.{path.stem}"] = names
    return {module: names & graph.keys() for module, names in graph.items()}


def test_the_server_has_no_import_circle() -> None:
    graph = _imports()
    assert graph[f"{PACKAGE}.node"], "the graph is not empty"
    for module in graph:
        seen: set[str] = set()
        left = set(graph[module])
        while left:
            one = left.pop()
            seen.add(one)
            left |= graph[one] - seen
        assert module not in seen, f"{module} imports itself through {seen}"


def test_a_lone_host_has_no_way_to_other_hosts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/1.db"
    create_schema(url, 1)

    async def run() -> None:
        config = load(server={"port": 0, "grace_ms": 2_000}, shards=[{"id": 1, "url": url}])
        node = Node(config, lambda number: SqlStore(url, shard=number))
        await node.start()
        refused: list[FoqsError | None] = []
        node.forwarder.ask("127.0.0.1:1", "GetServerInfo", None, 1_000, lambda response, error: refused.append(error))
        assert [type(error) for error in refused] == [NotSent]
        deadline = asyncio.get_running_loop().time() + 60
        held = lambda: set(node.forwarder.routing().slots.shards) == {1}  # noqa: E731
        assert await until(held, deadline), "its shard has all deduplication slots"
        assert await node.stop()
        assert not node.runner.closing

    asyncio.run(run())
