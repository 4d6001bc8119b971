"""Settings of a cluster's host: what a shard keeps is adopted before the shard is served, and never falls back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from foqs.engine.calls import LongPoll
from foqs.errors import Unavailable
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Settings
from foqs.rows import SettingRow
from foqs.server.settings import ClusterSettings
from foqs.settings_log import Log
from tests.engine.laboratory import Laboratory
from tests.policies.memory import MemorySettings
from tests.server.test_shard_settings import Thread, versions


class Cluster:
    """ZooKeeper in memory, and the hosts that follow it when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.store = MemorySettings(self.soon.append)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Host:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.settings = HostSettings(Laboratory(1).engine)
        self.threads: dict[int, Thread] = {}
        self.timers: list[Callable[[], None]] = []
        self.kept = ClusterSettings(
            cluster.store, self.settings, lambda: self.threads, lambda _, do: self.timers.append(do)
        )
        self.refused: dict[int, str] = {}

    def opens(self, number: int, thread: Thread) -> None:
        self.kept.settle(number, thread.rows(), partial(self._settled, number, thread))

    def _settled(self, number: int, thread: Thread, reason: str) -> None:
        self.refused[number] = reason
        if not reason:
            self.threads[number] = thread
            self.kept.copies.opened(number, thread.rows())

    def follow(self, found: Mapping[str, Settings] | None = None) -> None:
        self.kept.follow(dict(self.cluster.store.stored if found is None else found))

    def work(self) -> None:
        for thread in self.threads.values():
            while thread.calls:
                thread.run()


def shard(settings: Settings | None = None) -> Thread:
    made = Thread()
    if settings is not None:
        made.stored[settings.ns] = settings
    return made


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def host(cluster: Cluster) -> Host:
    return Host(cluster)


PAUSED = Settings("ns").changed({"topic.t": '{"paused": true}'}, (), nonce="pause")


def test_a_shard_is_served_after_its_settings_are_adopted(cluster: Cluster, host: Host) -> None:
    host.opens(1, shard(PAUSED))
    assert host.refused == {}, "not before ZooKeeper has them"
    cluster.run()
    assert (host.refused, cluster.store.stored) == ({1: ""}, {"ns": PAUSED})
    assert cluster.store.stored["ns"].history == PAUSED.history
    assert host.kept._settings._engine.state.policies.of(("ns", "t")).paused


def test_an_adopted_version_goes_on(cluster: Cluster, host: Host) -> None:
    host.opens(1, shard(versions("a", "b", "c")))
    cluster.run()
    outcomes: list[object] = []
    host.kept.change_settings("ns", lambda settings: settings.changed({"x": "1"}, ()), outcomes.append)
    cluster.run()
    assert isinstance(outcomes[0], Settings)
    assert (outcomes[0].version, outcomes[0].entries) == (4, {"a": "c", "x": "1"})


def test_hosts_that_start_at_once_act_on_the_newest(cluster: Cluster) -> None:
    old = versions("a")
    new = versions("b", "c", start=old)
    hosts = [Host(cluster) for _ in range(3)]
    for number, (host, settings) in enumerate(zip(hosts, (old, new, None), strict=True), 1):
        host.opens(number, shard(settings))
    cluster.run()
    assert [host.refused for host in hosts] == [{1: ""}, {2: ""}, {3: ""}]
    assert cluster.store.stored["ns"] == new
    for host in hosts:
        host.follow()
        host.work()
    assert [host.threads[n].stored["ns"] for n, host in enumerate(hosts, 1)] == [new] * 3


def test_a_shard_waits_while_zookeeper_is_away(cluster: Cluster, host: Host) -> None:
    cluster.store.error = Unavailable("ZooKeeper: no connection")
    host.opens(1, shard(PAUSED))
    cluster.run()
    assert "the settings of namespace ns are not adopted: ZooKeeper: no connection" in host.refused[1]
    assert host.settings.of("ns").version == 0
    cluster.store.error = None
    host.opens(1, shard(PAUSED))
    cluster.run()
    assert host.refused == {1: ""}


@pytest.mark.parametrize("known", [True, False])
def test_a_shard_of_another_installation_is_refused(cluster: Cluster, host: Host, known: bool) -> None:
    """Also when the host did not learn of the cluster's settings yet."""
    ours, theirs = versions("a"), versions("b", "c")
    cluster.store.stored["ns"] = ours
    if known:
        host.follow()
    thread = shard(theirs)
    host.opens(2, thread)
    cluster.run()
    for words in ("namespace ns in shard 2 (version 2)", "(version 1)", "`foqs shards settings 2 --discard`"):
        assert words in host.refused[2]
    assert (cluster.store.stored["ns"], thread.stored["ns"]) == (ours, theirs)


def test_nothing_of_a_refused_shard_is_adopted(cluster: Cluster, host: Host) -> None:
    cluster.store.stored["ns"] = versions("a")
    host.follow()
    thread = shard(versions("b"))
    thread.stored["mail"] = Settings("mail").changed({"x": "1"}, ())
    host.opens(2, thread)
    cluster.run()
    assert cluster.store.stored.keys() == {"ns"}


def test_each_change_reaches_the_shards_of_the_host(cluster: Cluster, host: Host) -> None:
    old = versions("a")
    cluster.store.stored["ns"] = old
    host.follow()
    host.opens(1, shard())
    host.opens(2, shard(old))
    host.work()
    assert [thread.stored["ns"] for thread in host.threads.values()] == [old, old]
    cluster.store.stored["ns"] = new = versions("b", start=old)
    host.follow()
    host.work()
    assert [thread.stored["ns"] for thread in host.threads.values()] == [new, new]


def test_a_version_is_confirmed_when_its_copies_are_written(cluster: Cluster, host: Host) -> None:
    """Or after a moment: the database of shard 2 hangs."""
    old = versions("a")
    host.follow({"ns": old})
    for number in (1, 2):
        host.opens(number, shard(old))
    host.work()
    timers, confirmed = host.timers, []
    host.timers.clear()

    def wait(version: int) -> None:
        host.settings.wait("ns", LongPoll(version, lambda _: confirmed.append(version)), 1 << 60)

    first = versions("b", start=old)
    wait(2)
    host.follow({"ns": first})
    wait(2)
    host.threads[1].run()
    assert (host.settings.of("ns"), confirmed) == (first, [])
    host.threads[2].run()
    assert confirmed == [2, 2]
    timers.clear()
    host.follow({"ns": versions("c", start=first)})
    wait(3)
    host.threads[1].run()
    assert confirmed == [2, 2]
    timers.pop()()
    assert confirmed == [2, 2, 3]
    wait(3)
    assert confirmed == [2, 2, 3, 3]


def test_a_host_does_not_follow_zookeeper_back(cluster: Cluster, host: Host) -> None:
    """ZooKeeper was put back to an older copy. The host repairs it, also when the first try fails."""
    old = versions("a")
    new = versions("b", "c", start=old)
    cluster.store.stored["ns"] = new
    host.follow()
    cluster.store.stored["ns"] = old
    cluster.store.error = Unavailable("ZooKeeper: no connection")
    host.follow()
    cluster.run()
    assert (host.settings.of("ns"), cluster.store.stored["ns"]) == (new, old)
    cluster.store.error = None
    host.timers.pop()()
    cluster.run()
    assert cluster.store.stored["ns"] == new


def test_a_change_goes_on_from_what_the_host_acts_on(cluster: Cluster, host: Host) -> None:
    """ZooKeeper was put back, and the host's repair is not there yet."""
    old = versions("a")
    new = versions("b", "c", start=old)
    host.follow({"ns": new})
    cluster.store.stored["ns"] = old
    outcomes: list[object] = []
    host.kept.change_settings("ns", lambda settings: settings.changed({"x": "1"}, (), 3), outcomes.append)
    cluster.run()
    assert isinstance(outcomes[0], Settings)
    assert (outcomes[0].version, cluster.store.stored["ns"].entries) == (4, {"a": "c", "x": "1"})


def test_an_empty_zookeeper_gets_the_copies_of_the_shards(cluster: Cluster, host: Host) -> None:
    host.follow({"ns": versions("a", "b")})
    host.opens(1, shard())
    host.work()
    again = Host(Cluster())
    again.opens(1, host.threads[1])
    again.cluster.run()
    assert again.cluster.store.stored["ns"] == versions("a", "b") == again.settings.of("ns")


def test_an_invalid_copy_is_logged_and_not_adopted(cluster: Cluster, host: Host) -> None:
    bad = Settings("ns", 3, {"topic.t": "no"})
    with capture_logs() as lines:
        host.opens(1, shard(bad))
        cluster.run()
    assert [line["event"] for line in lines] == ["settings.not_read"]
    assert (host.refused, cluster.store.stored) == ({1: ""}, {})


def test_a_known_copy_is_not_read_again(host: Host) -> None:
    """Its document may take a while to read, and each shard that opens has one."""
    known = versions("a")
    host.follow({"ns": known})
    row = SettingRow(b"ns", known.encoded().replace(b'"entries":{', b'"entries":{{{not JSON'))
    refused: list[str] = []
    host.kept.settle(1, [row], refused.append)
    assert refused == [""]


# ------------------------------------------------------------------------------------------ the log


def without_the_last_record(settings: Settings) -> Settings:
    """A document that is read before its log."""
    return replace(settings, log=Log(settings.log.lines[:-1]))


def test_copies_wait_for_the_log(host: Host) -> None:
    """A host that reads the document first writes no copy without the record, and confirms nothing."""
    host.opens(1, shard())
    made, answers = versions("a", "b"), list[int]()
    host.follow({"ns": without_the_last_record(made)})
    host.settings.wait("ns", LongPoll(2, lambda _: answers.append(2)), 10_000)
    host.work()
    assert ("ns" in host.threads[1].stored, answers) == (False, [])
    host.follow({"ns": made})
    host.work()
    assert (host.threads[1].stored["ns"].log, answers) == (made.log, [2])


def test_copies_wait_no_longer_than_a_moment(host: Host) -> None:
    """The log is gone from ZooKeeper, say. When it comes, it is written."""
    host.opens(1, shard())
    made = versions("a", "b")
    host.follow({"ns": without_the_last_record(made)})
    while host.timers:
        host.timers.pop()()
    host.work()
    assert host.threads[1].stored["ns"] == made
    assert host.threads[1].stored["ns"].log.version == 1
    host.follow({"ns": made})
    host.work()
    assert host.threads[1].stored["ns"].log == made.log


def test_a_shard_brings_the_log_back(cluster: Cluster, host: Host) -> None:
    """ZooKeeper lost the log, and has the document."""
    made = versions("a", "b")
    cluster.store.stored["ns"] = replace(made, log=Log())
    host.follow()
    host.opens(1, shard(made))
    cluster.run()
    assert host.refused == {1: ""}
    assert cluster.store.stored["ns"].log == made.log
