"""Reactions of a host to facts, without a ZooKeeper: when it takes a shard, when it waits, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.config.load import Config, change, load
from foqs.errors import PROTOCOL_VERSION, OtherProtocol
from foqs.policies.settings import Change, Changed, Settings
from foqs.server.cluster_node import ClusterNode
from foqs.shardmgr.facts import Assignment, Facts, HostFact, Identity, OwnerFact, Session, ShardFact, ShardUse
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from tests.support.waiting import wait_until_on_loop as until

DEADLINE_S = 30


class Told:
    """A FactStore that passes on the test's facts and records the host's requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.started = False

    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        self.changed, self.session, self.started = changed, session, True

    def join(self, host: HostFact) -> None:
        self.asked.append(("join", host))

    def close(self, done: Callable[[], None]) -> None:
        done()

    def recall(self, shard: int, done: Callable[[Any, None], None]) -> None:
        done({}, None)

    def remember(self, shard: int, identity: str, mark: object, done: Callable[[None], None]) -> None:
        done(None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **_: self.asked.append((name, *args))


def configured(**zookeeper: int) -> Config:
    return load(server={"id": "a", "port": 0}, zookeeper={"hosts": "h:1", "session_timeout_ms": 1_000, **zookeeper})


async def started(folder: Path, store: Told) -> tuple[ClusterNode, Facts, list[str]]:
    """Start host `a` with the facts of one shard, which is not assigned yet."""
    url, why = f"sqlite:///{folder}/1.db", []
    create_schema(url, 1)
    config = configured()
    assert config.zookeeper is not None
    member = ClusterNode(config, config.zookeeper, store, lambda n, url: SqlStore(url, shard=n), why.append)  # type: ignore[arg-type]
    starting = asyncio.ensure_future(member.start())
    await until(lambda: store.started)
    facts = Facts(shards={1: ShardFact(1, url)})
    store.session(Session.CONNECTED)
    store.changed(facts)
    await starting
    ((_, fact),) = store.asked
    return member, Facts(shards=facts.shards, hosts={"a": fact}), why


def assigned(facts: Facts) -> Facts:
    return Facts(shards=facts.shards, hosts=facts.hosts, assignment=Assignment(0, {1: "a"}))


def test_nothing_is_begun_while_the_session_is_suspended(tmp_path: Path) -> None:
    """Facts that were read before the suspension may arrive after it."""

    async def run() -> None:
        store = Told()
        member, facts, _ = await started(tmp_path, store)
        store.session(Session.SUSPENDED)
        store.changed(assigned(facts))
        for _ in range(3):
            await asyncio.sleep(0)
        assert (member.seat.fresh, dict(member.node.engine.state.shards)) == (False, {})
        store.session(Session.CONNECTED)
        assert not member.seat.fresh
        store.changed(assigned(facts))
        await until(lambda: bool(member.node.engine.state.serving))
        assert await member.stop()

    asyncio.run(run())


class Keeping(Told):
    """It keeps settings, and answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Settings] = {}
        self.joined: list[dict[str, Settings]] = []

    def join(self, host: HostFact) -> None:
        super().join(host)
        self.joined.append(dict(self.stored))

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        made = change(self.stored.get(ns) or Settings(ns))
        self.stored[ns] = made
        done(made)


def keep(url: str, number: int, settings: Settings) -> None:
    create_schema(url, number)
    store = SqlStore(url, shard=number)
    store.open("a lone host", take_over=True)
    store.change_settings(settings.ns, lambda _: settings)
    store.close(clean=True)


@pytest.mark.parametrize("first", [True, False])
def test_the_first_host_adopts_settings_before_it_joins(tmp_path: Path, first: bool) -> None:
    """Before it is assigned one: a shard without a copy could be served first. One shard is disabled, and one is gone.
    A later host leaves that to the shards that it opens."""

    async def run() -> None:
        store, config = Keeping(), configured()
        old = Settings("ns").changed({"a": "1"}, (), nonce="1")
        new = old.changed({"topic.t": '{"paused": true}'}, (), nonce="2")
        urls = {number: f"sqlite:///{tmp_path}/{number}.db" for number in range(1, 6)}
        keep(urls[1], 1, old)
        keep(urls[2], 2, new)
        create_schema(urls[3], 3)
        keep(urls[4], 4, new.changed({"a": "2"}, (), nonce="3"))
        shards = {number: ShardFact(number, url) for number, url in urls.items()}
        shards[4] = ShardFact(4, urls[4], use=ShardUse.DISABLED)
        assert config.zookeeper is not None
        member = ClusterNode(config, config.zookeeper, store, lambda n, url: SqlStore(url, shard=n), print)  # type: ignore[arg-type]
        starting = asyncio.ensure_future(member.start())
        await until(lambda: store.started)
        store.session(Session.CONNECTED)
        with capture_logs() as lines:
            store.changed(Facts(shards=shards, hosts={} if first else {"b": HostFact("b", "x:1", "another")}))
            await starting
        assert store.joined == [{"ns": new} if first else {}]
        assert member.node.engine.state.policies.of(("ns", "t")).paused is first
        missed = [line["shards"] for line in lines if line["event"] == "settings.not_adopted"]
        assert missed == ([[5]] if first else [])
        assert await member.stop()

    asyncio.run(run())


def test_a_host_whose_id_is_taken_begins_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store, config = Told(), configured()
        url = f"sqlite:///{tmp_path}/1.db"
        create_schema(url, 1)
        assert config.zookeeper is not None
        member = ClusterNode(config, config.zookeeper, store, lambda n, url: SqlStore(url, shard=n), print)  # type: ignore[arg-type]
        starting = asyncio.ensure_future(member.start())
        await until(lambda: store.started)
        shards = {1: ShardFact(1, url)}
        taken = Facts(shards=shards, hosts={"a": HostFact("a", "x:1", "another")}, assignment=Assignment(0, {1: "a"}))
        store.session(Session.CONNECTED)
        for facts in (taken, taken):
            store.changed(facts)
            for _ in range(3):
                await asyncio.sleep(0)
        assert (store.asked, dict(member.node.engine.state.shards), member.node.server.serves) == ([], {}, False)
        store.changed(Facts(shards=shards))
        await starting
        assert [what for what, *_ in store.asked] == ["join"]
        store.changed(taken)  # another newcomer was faster: its record stands, and the shards are its own
        for _ in range(3):
            await asyncio.sleep(0)
        assert dict(member.node.engine.state.shards) == {}
        assert await member.stop()

    asyncio.run(run())


def test_a_host_whose_id_another_process_takes_ends_silently(tmp_path: Path) -> None:
    async def run() -> None:
        store = Told()
        member, facts, why = await started(tmp_path, store)
        store.changed(Facts(shards=facts.shards, hosts={"a": HostFact("a", "x:1", "an earlier run")}))
        assert why == [], "left behind by an earlier run: ours comes"
        store.changed(facts)
        store.changed(Facts(shards=facts.shards, hosts={"a": HostFact("a", "x:1", "another run")}))
        assert "another process runs as host a, at x:1" in why[0]
        store.asked.clear()
        await member.stop()
        assert store.asked == []

    asyncio.run(run())


def test_a_host_of_another_protocol_version_may_not_join(tmp_path: Path) -> None:
    """The joining host ends with an error that names both versions, and never writes its record."""

    async def run() -> None:
        store, config = Told(), configured()
        assert config.zookeeper is not None
        member = ClusterNode(config, config.zookeeper, store, lambda n, url: SqlStore(url, shard=n), print)  # type: ignore[arg-type]
        starting = asyncio.ensure_future(member.start())
        await until(lambda: store.started)
        store.session(Session.CONNECTED)
        store.changed(Facts(hosts={"b": HostFact("b", "b:1", "run", protocol=PROTOCOL_VERSION + 1)}))
        why = rf"host b \(b:1\) has protocol version {PROTOCOL_VERSION + 1} .* {PROTOCOL_VERSION}: upgrade foqs on this"
        with pytest.raises(OtherProtocol, match=why):
            await starting
        assert store.asked == []
        await member.stop()

    asyncio.run(run())


def test_hosts_of_two_protocol_versions_that_join_at_once(tmp_path: Path) -> None:
    """A host ends that first sees itself together with a host of another version."""

    async def run() -> None:
        store = Told()
        member, facts, why = await started(tmp_path, store)
        other = HostFact("b", "b:1", "run", protocol=0)
        store.changed(Facts(shards=facts.shards, hosts={**facts.hosts, "b": other}))
        assert "host b (b:1) has protocol version 0" in why[0]
        await member.stop()

    asyncio.run(run())


def test_a_host_in_its_cluster_stays_when_another_version_comes(tmp_path: Path) -> None:
    async def run() -> None:
        store = Told()
        member, facts, why = await started(tmp_path, store)
        store.changed(facts)
        store.changed(Facts(shards=facts.shards, hosts={**facts.hosts, "b": HostFact("b", "b:1", "run", protocol=0)}))
        assert why == []
        await member.stop()

    asyncio.run(run())


def test_a_controller_uses_a_new_balance_interval(tmp_path: Path) -> None:
    async def run() -> None:
        store = Told()
        member, facts, _ = await started(tmp_path, store)
        here = facts.hosts["a"]
        url = facts.shards[1].url
        uneven = Facts(
            shards={1: ShardFact(1, url), 2: ShardFact(2, url)},
            hosts={"a": here, "b": HostFact("b", "x:1", "another")},
            owners={1: OwnerFact(1, "b", "x:1", 1), 2: OwnerFact(2, "b", "x:1", 1)},
            assignment=Assignment(0, {1: "b", 2: "b"}),
            controller="a",
        )
        store.changed(uneven)
        member.reconfigure(change(configured(), configured(balance_every_ms=1_000)).config)
        await until(lambda: any(what == "assign" for what, *_ in store.asked))
        (written,) = [args[0] for what, *args in store.asked if what == "assign"]
        assert sorted(written.values()) == ["a", "b"]
        await member.stop()

    asyncio.run(run())


def test_records_of_another_cluster_change_nothing(tmp_path: Path) -> None:
    """It is no member there: no shard is assigned to a host that leaves."""

    async def run() -> None:
        store = Told()
        member, facts, _ = await started(tmp_path, store)
        ours = replace(assigned(facts), identity=Identity(0, "ours"))
        store.changed(ours)
        await until(lambda: bool(member.node.engine.state.serving))
        store.session(Session.SUSPENDED)
        store.session(Session.CONNECTED)
        with capture_logs() as logged:
            store.changed(Facts(identity=Identity(0, "theirs")))
        (event,) = logged
        assert (event["event"], event["known"], event["found"]) == ("zookeeper.other_cluster", "ours", "theirs")
        assert store.asked[-1][1].leaving
        assert (member.seat.fresh, list(member.node.engine.state.shards)) == (False, [1])
        outcomes: list[object] = []
        member.settings.change_settings("ns", lambda settings: settings, outcomes.append)
        await until(lambda: bool(outcomes))
        assert "another cluster" in str(outcomes[0])
        store.changed(ours)
        await until(lambda: member.seat.fresh)
        assert not [fact for what, fact, *_ in store.asked if what == "join"][-1].leaving
        assert await member.stop()

    asyncio.run(run())


def test_a_host_writes_back_settings_and_marks(tmp_path: Path) -> None:
    async def run() -> None:
        store = Keeping()
        marks: list[int] = []
        store.remember = lambda shard, identity, mark, done: (marks.append(shard), done(None))  # type: ignore[method-assign, func-returns-value, assignment]
        member, facts, _ = await started(tmp_path, store)
        known = Settings("ns").changed({"plans/a": "1"}, (), nonce="1")
        ours = replace(assigned(facts), identity=Identity(0, "ours"), settings={"ns": known})
        store.changed(ours)
        await until(lambda: bool(member.node.engine.state.serving and marks))
        marks.clear()
        store.session(Session.EXPIRED)
        store.session(Session.CONNECTED)
        with capture_logs() as logged:
            store.changed(Facts(settings={"ns": known}, vanished=frozenset({"ns"})))
        assert [event["event"] for event in logged] == ["zookeeper.lost"]
        assert (marks, store.stored["ns"], member.seat.fresh) == ([1], known, False)
        assert await member.stop()

    asyncio.run(run())
