"""Shards that change between a single host and a cluster: no settings are lost, whatever order things happen in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.client import Client, ItemSpec
from foqs.store.maintenance import create_schema
from foqs_lab.servers import ZookeeperServer
from foqs_lab.servers.process import free_port
from tests.api.hosts import PATIENT, HostProcess, foqs, until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]
PAUSE = {"topic.t": '{"paused": true}'}


class World:
    """Shards in files, single hosts on some of them, and a cluster."""

    def __init__(self, folder: Path, zookeeper: ZookeeperServer) -> None:
        self.folder = folder
        self.root = "/foqs"
        self.zookeeper = zookeeper
        self._hosts: list[HostProcess] = []

    def url(self, number: int) -> str:
        return f"sqlite:///{self.folder}/shard-{number}.db"

    def config(self, *shards: int) -> Path:
        path = self.folder / f"{'-'.join(map(str, shards)) or 'cluster'}.toml"
        if shards:
            path.write_text("".join(f'[[shards]]\nid = {n}\nurl = "{self.url(n)}"\n' for n in shards))
        else:
            path.write_text(
                f'[zookeeper]\nhosts = "{self.zookeeper.hosts}"\nroot = "{self.root}"\nsession_timeout_ms = 4000\n'
            )
        return path

    def serve(self, *shards: int, name: str = "host") -> HostProcess:
        """Start a single host on `shards`, or a host of the cluster."""
        log = self.folder / f"log-{len(self._hosts)}"
        env = PATIENT | {"FOQS_SERVER__PORT": str(free_port()), "FOQS_SERVER__HOST": "127.0.0.1"}
        env |= {"FOQS_ADMIN__PORT": "0", "FOQS_SERVER__ID": name}
        self._hosts.append(HostProcess(log, ["serve", "--config", self.config(*shards)], env))
        return self._hosts[-1]

    def add(self, *numbers: int, also: tuple[str, ...] = (), code: int = 0) -> str:
        said = ""
        for number in numbers:
            words = ["add", str(number), self.url(number), "--create", "--no-wait", *also, "-c", str(self.config())]
            done = foqs("shards", *words)
            assert done.returncode == code, done
            said += done.stdout + done.stderr
        return said

    def compared(self, *shards: int) -> list[str]:
        done = foqs("shards", "settings", "--config", self.config(*shards))
        return (done.stdout + done.stderr).splitlines()

    def close(self) -> None:
        for host in self._hosts:
            host.kill()


@pytest.fixture
def world(tmp_path: Path, own_zookeeper: ZookeeperServer) -> Iterator[World]:
    made = World(tmp_path, own_zookeeper)
    for number in range(1, 5):
        create_schema(made.url(number), number)
    yield made
    made.close()


def at(host: HostProcess) -> Client:
    name, port = host.address
    return Client(f"{name}:{port}", "shop", routing=False)


def fill(client: Client, count: int = 20) -> None:
    """Store items of the topic, when the shards take some."""

    def stored() -> bool:
        return any(isinstance(one, int) for one in client.enqueue_many([ItemSpec("t", b"x")] * count))

    until(stored, "an item")


def quiet(client: Client, wait_ms: int = 1_000) -> None:
    assert client.dequeue("t", 10, wait_ms=wait_ms) == []


def kept_everywhere(world: World, shards: int, version: int) -> None:
    wanted = [
        f"shard {n}: shop version {version}, the same as version {version} of the cluster" for n in range(1, shards + 1)
    ]
    until(lambda: world.compared() == wanted, world.compared)


def test_a_change_after_the_shards_were_added_is_adopted(world: World) -> None:
    """The single host goes on until the cluster takes its shard. A new shard, which has no copy, opens too."""
    one = world.serve(1)
    with at(one) as client:
        fill(client)
        assert world.add(1, 2).count("the cluster takes over") == 0
        paused = client.put_settings(PAUSE)
        hosts = [world.serve(name=name) for name in ("a", "b")]
        with at(hosts[0]) as a, at(hosts[1]) as b:
            for one_of_them in (a, b):
                assert one_of_them.settings()[:2] == (paused.version, PAUSE)
                fill(one_of_them)
                quiet(one_of_them)
            kept_everywhere(world, 2, paused.version)


def test_several_hosts_that_start_at_once_act_on_the_settings(world: World) -> None:
    one = world.serve(1, 2, 3, 4)
    with at(one) as client:
        fill(client, 40)
        paused = client.put_settings(PAUSE)
    assert one.stop() == 0
    assert (
        world.add(1, 2, 3, 4).splitlines().count("the cluster takes over the settings of namespace shop (version 1)")
        == 1
    )
    hosts = [world.serve(name=name) for name in "abc"]
    for host in hosts:
        with at(host) as client:
            assert client.settings()[:2] == (paused.version, PAUSE)
            quiet(client)


def test_a_zookeeper_that_lost_its_data_gets_the_settings_back(world: World) -> None:
    """And versions go on: a program that read version 2 does not meet another version 2."""
    world.add(1, 2)
    host = world.serve()
    with at(host) as client:
        client.put_settings({"plans/acme": "gold"})
        paused = client.put_settings(PAUSE)
        fill(client)
        kept_everywhere(world, 2, paused.version)
        log = client.settings_log()
    assert host.stop() == 0
    world.root = "/empty"
    said = world.add(1, 2)
    assert "the cluster takes over the settings of namespace shop (version 2)" in said
    host = world.serve()
    with at(host) as client:
        assert client.settings()[:2] == (2, {"plans/acme": "gold", **PAUSE})
        assert client.settings_log() == log, "with its authors"
        quiet(client)
        assert client.put_settings({}, ["plans/acme"]).version == 3


@pytest.mark.parametrize("shards", [(2, 1), (1,), (2,), (2, 3), (3, 1, 2)])
def test_a_single_host_acts_on_the_settings_of_a_cluster(world: World, shards: tuple[int, ...]) -> None:
    """On all of the cluster's shards, on some, in another order, with a new one. Shard 3 is new."""
    world.add(1, 2)
    host = world.serve()
    with at(host) as client:
        paused = client.put_settings(PAUSE)
        fill(client)
        kept_everywhere(world, 2, paused.version)
    assert host.stop() == 0
    with at(world.serve(*shards)) as client:
        assert client.settings()[:2] == (paused.version, PAUSE)
        fill(client)
        quiet(client)


def test_a_new_lowest_shard_and_a_second_host_find_the_settings(world: World) -> None:
    first = world.serve(2, 3)
    with at(first) as client:
        client.put_settings(PAUSE)
        fill(client)
    standby = world.serve(1, 2, 3, name="standby")
    time.sleep(0.5)
    assert not standby.listening, "shard 1 is new, and knows nothing"
    first.kill()
    with at(standby) as client:
        assert client.settings()[:2] == (1, PAUSE)
        fill(client)
        quiet(client)


def test_shards_of_two_hosts_do_not_join_one_cluster_unnoticed(world: World) -> None:
    for number, entries in ((1, {"plans/acme": "gold"}), (2, PAUSE)):
        host = world.serve(number)
        with at(host) as client:
            client.put_settings(entries)
            fill(client)
        assert host.stop() == 0
    world.add(1)
    said = world.add(2, code=1)
    for words in ("shard 2 is not added", "namespace shop in shard 2 (version 1)", "--discard-settings"):
        assert words in said
    with at(world.serve()) as client:
        client.put_settings(PAUSE)
        world.add(2, also=("--discard-settings",))
        until(lambda: len(world.compared()) == 2, "the copy in shard 2")
        assert client.settings()[:2] == (2, {"plans/acme": "gold", **PAUSE})
        quiet(client)


def test_a_single_host_serves_no_shard_of_another_installation(world: World) -> None:
    for number, entries in ((1, {"plans/acme": "gold"}), (2, PAUSE)):
        host = world.serve(number)
        with at(host) as client:
            client.put_settings(entries)
        assert host.stop() == 0
    both = world.serve(1, 2)
    until(lambda: "were made apart" in both.said(), both.said)
    assert "foqs shards settings 2 --discard" in both.said()
    assert foqs("shards", "settings", "2", "--discard", "--yes", "--config", world.config(1, 2)).returncode == 0
    with at(both) as client:
        until(lambda: len(world.compared(1, 2)) == 2, lambda: world.compared(1, 2))
        assert client.settings()[:2] == (1, {"plans/acme": "gold"})


def test_deduplication_keys_are_remembered(world: World) -> None:
    """The shard that has a slot keeps it in the cluster."""
    keys = [f"key-{number}" for number in range(40)]
    specs = [ItemSpec("t", b"x", dedup_key=key) for key in keys]

    def enqueue(client: Client) -> list[int]:
        found: dict[str, int] = {}

        def stored() -> bool:
            left = [spec for spec in specs if spec.dedup_key not in found]
            for spec, outcome in zip(left, client.enqueue_many(left), strict=True):
                if isinstance(outcome, int):
                    found[str(spec.dedup_key)] = outcome
            return not left or len(found) == len(keys)

        until(stored, lambda: f"all items; {len(found)} are stored", 120)
        return [found[key] for key in keys]

    one = world.serve(1, 2)
    with at(one) as client:
        ids = enqueue(client)
    assert one.stop() == 0
    world.add(1, 2)
    host = world.serve()
    with at(host) as client:
        assert enqueue(client) == ids
    assert host.stop() == 0
    with at(world.serve(1, 2)) as client:
        assert enqueue(client) == ids


def test_no_id_is_given_twice(world: World) -> None:
    ids: set[int] = set()

    def enqueue(client: Client) -> set[int]:
        outcomes: list[int] = []

        def stored() -> bool:
            outcomes.extend(one for one in client.enqueue_many([ItemSpec("t", b"x")] * 50) if isinstance(one, int))
            return len(outcomes) >= 50

        until(stored, "50 items")
        return set(outcomes)

    for shards in ((1, 2), (), (1, 2), (), (2,)):
        host = world.serve(*shards)
        with at(host) as client:
            more = enqueue(client)
            assert not ids & more
            ids |= more
        host.kill()  # without an orderly close
        if shards == (1, 2) and len(ids) < 100:
            world.add(1, 2)
