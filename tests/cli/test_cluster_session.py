"""A command's session when other commands change the same facts, and when the connection is lost in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from foqs.errors import Invalid, Unavailable
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Assign, Change, MarkHost
from foqs.zk.session import Cluster, NotDone
from tests.cli.players import Player
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

T = TypeVar("T")


def finished(rig: ZookeeperRig, work: Coroutine[object, object, T]) -> T:
    return rig.loop.run_until_complete(work)


def assigning(version: int) -> Change:
    return Change("test", "assigns", "assigned", Assign({7: "nobody"}, version))


def unheard(_change: Change, _certain: bool) -> None: ...


def idle(rig: ZookeeperRig) -> Player:
    player = Player(rig, "a")
    player.controls = False
    player.assign({7: "other"})
    player.sees(lambda facts: facts.assignment.version == 0)
    return player


def test_a_change_after_a_conflict_is_decided_again(zk_rig: ZookeeperRig) -> None:
    seen = idle(zk_rig)
    versions: list[int] = []

    def decide(facts: Facts) -> Change:
        versions.append(facts.assignment.version)
        return assigning(-1 if len(versions) == 1 else versions[-1])

    async def work() -> Facts:
        async with Cluster(zk_rig.config(), 30) as cluster:
            await cluster.carry_out(decide, unheard)
            return cluster.facts

    assert finished(zk_rig, work()).assignment.hosts == {7: "nobody"}
    assert versions == [0, 0]
    seen.sees(lambda facts: facts.assignment.version == 1)


def test_repeated_conflicts_end_the_command(zk_rig: ZookeeperRig) -> None:
    idle(zk_rig)

    async def work() -> None:
        async with Cluster(zk_rig.config(), 30) as cluster:
            await cluster.carry_out(lambda _: assigning(-1), unheard)

    with pytest.raises(Unavailable, match="retry"):
        finished(zk_rig, work())


@pytest.mark.parametrize("turns", range(5))
def test_an_interruption_that_comes_with_news_ends_the_waiting(zk_rig: ZookeeperRig, turns: int) -> None:
    async def work() -> None:
        async with Cluster(zk_rig.config(), 30) as cluster:
            said = asyncio.Event()
            waiting = asyncio.create_task(cluster.until(lambda _: ["something"], 600, lambda _: said.set()))
            await said.wait()
            await asyncio.sleep(0)
            cluster._changed(cluster.facts)
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert waiting.cancelled()

    finished(zk_rig, work())


def test_a_time_out_names_the_missing_steps(zk_rig: ZookeeperRig) -> None:
    said: list[str] = []

    def never(_facts: Facts) -> list[str]:
        raise Invalid("it never will be")

    async def work() -> None:
        async with Cluster(zk_rig.config(), 30) as cluster:
            await cluster.until(lambda _: [], 0, said.append)
            assert not said
            with pytest.raises(NotDone, match=r"within 0\.05 s \(--timeout\): 0; 1; 2 and 7 more\."):
                await cluster.until(lambda _: [str(n) for n in range(10)], 0.05, said.append)
            with pytest.raises(Invalid, match="never"):
                await cluster.until(never, 30, said.append)

    finished(zk_rig, work())
    assert said == ["0; 1; 2 and 7 more"]


def test_a_connection_that_is_lost_in_the_middle(own_rig: ZookeeperRig) -> None:
    """The command finds out whether its change was made, and continues to wait after the reconnection."""
    server = own_rig.server
    decided: list[Change] = []
    audited: list[tuple[Change, bool]] = []
    said: list[str] = []
    missing = ["it"]
    begun, lost = asyncio.Event(), asyncio.Event()

    def decide(_facts: Facts) -> Change:
        if not decided:
            server.pause()
        decided.append(Change("test", "marks", "marked", MarkHost("h", drained=True)))
        return decided[-1]

    def progress(words: str) -> None:
        said.append(words)
        begun.set()
        if words == "ZooKeeper does not answer":
            lost.set()

    async def work() -> None:
        # The session timeout is long, so that only a pause of the server ends a connection.
        async with Cluster(own_rig.config(session_timeout_ms=6_000), 60) as cluster:
            change = asyncio.ensure_future(cluster.carry_out(decide, lambda *told: audited.append(told)))
            while cluster.connected:
                await cluster.news()
            server.resume()
            assert (await change).action == MarkHost("h", drained=True)
            assert cluster.facts.drained == {"h"}
            assert [certain for _, certain in audited] == [True]

            waiting = asyncio.ensure_future(cluster.until(lambda _: missing, 60, progress))
            await begun.wait()
            server.pause()
            await lost.wait()
            missing.clear()
            server.resume()
            await waiting

    finished(own_rig, work())
    assert said == ["it", "ZooKeeper does not answer"]


@pytest.mark.parametrize("how", ["time-out", "ctrl-c"])
def test_an_unanswered_change_is_audited_as_unknown(own_rig: ZookeeperRig, how: str) -> None:
    audited: list[bool] = []
    paused = asyncio.Event()

    def decide(_facts: Facts) -> Change:
        own_rig.server.pause()
        paused.set()
        return Change("test", "marks", "marked", MarkHost("h", drained=True))

    async def work() -> None:
        try:
            async with Cluster(own_rig.config(), 60) as cluster:
                if how == "time-out":
                    cluster._timeout_s = 1  # limits the change only, not the time to connect
                change = asyncio.ensure_future(cluster.carry_out(decide, lambda _, certain: audited.append(certain)))
                if how == "ctrl-c":
                    await paused.wait()
                    change.cancel()
                await change
        finally:
            own_rig.server.resume()

    with pytest.raises(Unavailable if how == "time-out" else asyncio.CancelledError):
        finished(own_rig, work())
    assert audited == [False]
