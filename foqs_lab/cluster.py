"""A cluster on this machine: hosts as processes, their shards on private database servers, a ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from foqs.config.schema import ZookeeperSection
from foqs.shardmgr.controller import moving
from foqs.shardmgr.facts import Facts, ShardFact
from foqs.shardmgr.operate import Assign, PutShard
from foqs.zk.protocol import ZkConflict
from foqs_lab.crash.rig import HostProcess, Shard, toml
from foqs_lab.registry import Registry
from foqs_lab.servers import ZookeeperServer

ROOT = "/foqs"
Settings = Mapping[str, Mapping[str, object]]


class LocalCluster:
    """`settings` are keys of foqs.toml by section, of all hosts; those of `zookeeper` matter to lookers-on too."""

    def __init__(
        self, zookeeper: ZookeeperServer, shards: Sequence[Shard], folder: Path, settings: Settings | None = None
    ) -> None:
        """Tells ZooKeeper of the shards; starts no host yet."""
        self.zookeeper = zookeeper
        self.shards = list(shards)
        self.hosts: dict[str, HostProcess] = {}
        self._folder = folder
        self._settings = {section: dict(keys) for section, keys in (settings or {}).items()}
        self._settings.setdefault("zookeeper", {}).update(hosts=zookeeper.hosts, root=ROOT)
        self.config = folder / "foqs.toml"  # an operator's
        self.config.write_text(toml(self._settings))
        self.registry = Registry(self.section)
        for shard in self.shards:
            self.registry.carry_out(PutShard(ShardFact(shard.number, shard.url), None))

    @property
    def section(self) -> ZookeeperSection:
        return ZookeeperSection.model_validate(self._settings["zookeeper"])

    def add(
        self, name: str, port: int | None = None, settings: Settings | None = None, workers: int | None = None
    ) -> None:
        """A host that is not started yet, with settings of its own; with `workers` so many, called `name`-1, ..."""
        merged = {section: {**keys, **(settings or {}).get(section, {})} for section, keys in self._settings.items()}
        for section, keys in (settings or {}).items():
            merged.setdefault(section, dict(keys))
        self.hosts[name] = HostProcess(name, (), self._folder, merged, port, workers)

    def start(self, *names: str) -> None:
        """Starts hosts at the same time, new ones or such as were stopped or killed; returns when they listen."""
        for name in names:
            if name not in self.hosts:
                self.add(name)
            self.hosts[name].launch()
        for name in names:
            self.hosts[name].wait_listening()

    def settled(self, *names: str, timeout_ms: int = 60_000) -> Facts:
        """When every shard is served by the living host that it is assigned to, and those hosts are `names` (by default
        all that run). Raises TimeoutError."""
        wanted = set(names or (one for host in self.hosts.values() if host.alive for one in host.ids))
        return self.registry.wait_for(partial(_settled, wanted, len(self.shards)), timeout_ms=timeout_ms)

    def place(self, hosts: Mapping[int, str]) -> Facts:
        """Move each shard to the host in `hosts` and wait for it. The next round of balancing may undo it."""
        facts = self.settled()
        while facts.assignment.hosts != hosts:
            version = facts.assignment.version
            with suppress(ZkConflict):  # the controller was faster
                self.registry.carry_out(Assign(hosts, version))
            self.registry.wait_for(lambda facts, version=version: facts.assignment.version > version)  # type: ignore[misc]
            # A controller that does not know a host yet moves the shards away that are assigned to it.
            facts = self.settled()
        return facts

    def stop(self) -> None:
        """Hosts one after the other, then the rest. May be called twice."""
        for host in self.hosts.values():
            host.stop()
        self.registry.close()


def _settled(wanted: set[str], shards: int, facts: Facts) -> bool:
    return (
        facts.hosts.keys() == wanted
        and len(facts.assignment.hosts) == shards
        and set(facts.assignment.hosts.values()) <= wanted
        and not moving(facts)
    )


@contextmanager
def local_cluster(shards: Sequence[Shard], folder: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """With a ZooKeeper of its own; all is ended at the end."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZookeeperServer())
        cluster = LocalCluster(zookeeper, shards, folder, settings)
        stack.callback(cluster.stop)
        yield cluster
