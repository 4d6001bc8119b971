"""Several real hosts in one process, each with its server and SQLite shards, and a routing that the test says."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from foqs.config.load import Config, load
from foqs.server.clock import Survey
from foqs.server.marks import MarkStore
from foqs.server.node import Neighbours, Node
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Route, Routing, make_routing
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from tests.api.wire import Wire
from tests.support.waiting import wait_until

PATIENCE_S = 100.0
_PATIENT: dict[str, Any] = {
    "breaker": {"hang_ms": 60_000, "mean_latency_ms": 60_000},
    "host": {"confirm_ms": 30_000},
}
"""A busy machine holds up a trip for a second: that is no database to be left alone, whose items go elsewhere."""


class Member(Node):
    """A node that forwards. `shards` are opened at the start; `take` opens more, also those that another host has."""

    def __init__(self, cluster: "Cluster", name: str, shards: Sequence[int], handover_ms: int, **sections: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.config: Config = load(
            server={"id": name, "port": 0, "grace_ms": 2_000, **sections.pop("server", {})},
            shards=[{"id": number, "url": cluster.url(number)} for number in shards],
            **{**_PATIENT, **sections},
        )
        self.routing = Routing()
        self.share_slots: Callable[[], object] = lambda: None
        self.slots_arrived: Callable[[Any], object] = lambda moved: None
        neighbours = Neighbours(
            lambda: self.routing,
            handover_ms,
            lambda: None,
            lambda: self.share_slots(),  # noqa: PLW0108 - a test may set another one later, here and below
            lambda moved: self.slots_arrived(moved),  # noqa: PLW0108
        )
        super().__init__(
            self.config,
            cluster.store,
            neighbours=neighbours,
            marks=cluster.marks,
            survey=cluster.survey(),
        )
        self.peers.caller._connect_timeout_s = PATIENCE_S

    @property
    def counters(self) -> Any:
        return self.engine.state.counters

    def serves(self, number: int) -> bool:
        shard = self.engine.state.shards.get(number)
        return shard is not None and shard.owner.state is ShardState.SERVING

    def look_whose(self, number: int) -> None:
        """Has the host ask whether the shard still is its own, if it has not found out by itself."""
        if number in self.engine.state.shards:
            self.recheck_owner(number)

    def told(self, routing: Routing) -> None:
        self.routing = routing
        self.service.routing_changed()

    def die(self) -> None:
        """Close all its connections, in the middle of a frame."""
        self.server.close()
        self.peers.caller.close()


class Cluster:
    """One loop for all. Methods are called from the test's thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.loop_errors: list[dict[str, Any]] = []
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.members: list[Member] = []
        self.marks: MarkStore | None = None  # of all its hosts
        self.wires: list[Wire] = []
        self.shards: set[int] = set()

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def on_loop(self, do: Callable[[], Any]) -> Any:
        async def work() -> Any:
            return do()

        return self.wait(work())

    def until(self, reached: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self.on_loop(reached), what, PATIENCE_S)

    def path(self, number: int) -> Path:
        return self._directory / f"shard-{number}.db"

    def url(self, number: int) -> str:
        return f"sqlite:///{self.path(number)}"

    def store(self, number: int) -> SqlStore:
        """A closed store of a shard, for each host that opens it."""
        return SqlStore(self.url(number), shard=number)

    def survey(self) -> Survey | None:
        """What a host reads the clocks of all databases with. Called on the loop."""
        return None

    def add(self, name: str, *shards: int, handover_ms: int = 20_000, **sections: Any) -> Member:
        """Starts a host, with `sections` of the configuration."""
        for number in shards:
            create_schema(self.url(number), number)
        self.shards |= set(shards)

        async def start() -> Member:
            member = Member(self, name, shards, handover_ms, **sections)
            await member.start()
            return member

        member: Member = self.wait(start())
        self.until(lambda: all(member.serves(number) for number in shards), "its shards served")
        self.members.append(member)
        return member

    def routing(self, *members: Member, without: Sequence[int] = (), **others: Any) -> Routing:
        """The shards that `members` (by default all) serve, as the living hosts. Each further keyword adds a host that
        is no member: `name=(address, shard)`."""
        living = members or tuple(self.members)
        owners = {
            number: Route(member.address, member.engine.state.shards[number].owner.epoch, member.name)
            for member in living
            for number in member.engine.state.shards
            if member.serves(number) and number not in without
        }
        hosts = {member.name: member.address for member in living}
        for name, (address, shard) in others.items():
            owners[shard] = Route(address, 1, name)
            hosts[name] = address
            self.shards.add(shard)
        return make_routing(owners, hosts, self.shards)

    def tell(self, routing: Routing | None = None) -> Routing:
        """Gives a routing to all members: by default what they serve."""

        def tell() -> Routing:
            told = self.routing() if routing is None else routing
            for member in self.members:
                member.told(told)
            return told

        return self.on_loop(tell)  # type: ignore[no-any-return]

    def move(self, number: int, to: Member) -> None:
        """Let `to` take the shard by force, and inform neither the owner nor any other member."""
        self.on_loop(lambda: to.take(number))
        self.until(lambda: to.serves(number), f"shard {number} on {to.name}")

    def wire(self, member: Member, **options: Any) -> Wire:
        host, _, port = member.address.rpartition(":")
        self.wires.append(Wire((host, int(port)), **options))
        return self.wires[-1]

    def stop(self) -> None:
        for wire in self.wires:
            wire.close()
        for member in self.members:
            self.on_loop(member.peers.caller.close)
            self.wait(member.stop())
            self.until(lambda member=member: not member.server.counters.connections, "its connections closed")  # type: ignore[misc]
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextmanager
def cluster_in(directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.stop()
    assert cluster.loop_errors == []
