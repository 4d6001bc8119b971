"""What a host measures of itself: windows of samples, hosts that are gone, pauses of shards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.config.load import Config
from foqs.counters import BatchSums
from foqs.event_loop import until
from foqs.figures import HostStatus, RateStatus, ShardStatus
from foqs.server.vitals import (
    GONE_S,
    LATE_S,
    Gone,
    LoopLag,
    Pauses,
    Sample,
    Window,
    alike_of,
    trouble_of,
    waited_s,
)
from foqs.shardmgr.facts import Facts, HostFact, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState


def test_figures_are_of_the_last_half_minute() -> None:
    window = Window()
    for at in range(0, 61, 2):
        window.add(Sample(float(at), at * 0.25, at * 0.75, at * 10, at * 20, at * 3, at, 0.5 if at == 40 else 0.01))
    host = window.figures(HostStatus("a:1"))
    assert (host.loop_busy, host.loop_waiting, host.items_per_s) == (0.25, 0.75, 20.0)
    assert (host.loop_late, host.loop_lag_ms, host.quota_refused) == (30, 500, 90)


def test_one_sample_says_nothing() -> None:
    window = Window()
    window.add(Sample(1.0))
    assert window.figures(HostStatus("a:1")) == HostStatus("a:1")
    assert window.shard(ShardStatus(1), 100) == ShardStatus(1)


def test_a_shard_counts_since_it_is_here() -> None:
    window = Window()
    window.add(Sample(0.0))
    window.add(Sample(2.0, shards={1: BatchSums(5, 50.0, 1.0, 500.0, 10.0, 1.0)}))
    window.add(Sample(12.0, shards={1: BatchSums(25, 250.0, 3.0, 2_500.0, 30.0, 6.0)}))
    status = window.shard(ShardStatus(1), 1_000)
    assert status.busy == 0.5
    assert status.growth == pytest.approx(5.0), "20 transactions of 0.1 s in 10 s"
    assert status.transaction_ms == 100


def test_sections_that_differ_have_other_digests() -> None:
    plain, again = Config(), Config()
    bound = Config.model_validate({"quotas": {"namespaces": {"shop": {"stored_items": 5}}}})
    assert alike_of(plain) == alike_of(again) and alike_of(plain).keys() == {"limits", "quotas"}
    assert alike_of(bound)["quotas"] != alike_of(plain)["quotas"]
    assert alike_of(bound)["limits"] == alike_of(plain)["limits"]


def test_counts_that_begin_again_are_not_negative() -> None:
    window = Window()
    window.add(Sample(0.0, shards={1: BatchSums(25, 250.0, 3.0, 2_500.0, 30.0, 6.0)}))
    window.add(Sample(2.0, shards={1: BatchSums()}))
    assert window.shard(ShardStatus(1), 100) == ShardStatus(1)


def test_the_rates_of_namespaces() -> None:
    window = Window()
    window.add(Sample(10.0, stored={"a": 100}))
    window.add(Sample(20.0, stored={"a": 4_900, "b": 30}))
    assert window.figures(HostStatus("a:1")).rates == (RateStatus("a", 480.0), RateStatus("b", 3.0))


@pytest.mark.parametrize(("text", "waited"), [("5 2500000000 7\n", 2.5), ("", None), ("cpu x\n", None)])
def test_how_long_a_thread_waited_for_a_processor(text: str, waited: float | None, tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text(text)
    assert waited_s(tmp_path / "schedstat") == waited
    assert waited_s(tmp_path / "none") is None


def facts(hosts: str = "", owners: dict[int, str] | None = None, leaving: str = "", disabled: int = 0) -> Facts:
    return Facts(
        hosts={host: HostFact(host, f"{host}:1", "run", leaving=host in leaving) for host in hosts},
        shards={
            number: ShardFact(number, "sqlite://", use=ShardUse.DISABLED if number == disabled else ShardUse.ENABLED)
            for number in (1, 2)
        },
        owners={number: OwnerFact(number, host, f"{host}:1", 1) for number, host in (owners or {}).items()},
    )


def test_hosts_that_end_without_notice_are_kept_for_an_hour() -> None:
    gone = Gone()
    gone.follow(facts("abc"), facts("ac"), 10.0)
    gone.follow(facts("ac", leaving="c"), facts("a"), 20.0)
    assert gone.names(20.0) == ("b at b:1",), "c has said that it leaves"
    assert gone.names(10.0 + GONE_S) == ()
    gone.follow(facts("a"), facts("ab"), 30.0)
    assert gone.names(30.0) == ()


def counts(pauses: Pauses) -> tuple[int, float]:
    return sum(pauses.seconds.counts), pauses.seconds.total


def test_a_pause_lasts_from_the_last_owner_to_this_one() -> None:
    pauses = Pauses("a")
    owners = [{1: "b", 2: "b"}, {2: "b"}, {1: "a", 2: "b"}, {1: "a", 2: "a"}]
    steps = [facts("ab", one) for one in owners]
    for at, (before, after) in enumerate(zip([facts("ab"), *steps], steps, strict=False)):
        pauses.follow(before, after, 10.0 * at)
    assert counts(pauses) == (2, 10.0), "shard 2 went from owner to owner"


def test_other_hosts_and_disabled_shards_have_no_pause_here() -> None:
    pauses = Pauses("a")
    steps = [
        facts("ab", {2: "b"}), facts("ab", {1: "b", 2: "b"}), facts("ab", {2: "b"}, disabled=1),
        facts("ab", {2: "b"}), facts("ab", {1: "a", 2: "b"}),
    ]  # fmt: skip
    for at, (before, after) in enumerate(zip([facts("ab"), *steps], steps, strict=False)):
        pauses.follow(before, after, 10.0 * at)
    assert counts(pauses) == (1, 10.0)


def shard(state: ShardState = ShardState.SERVING, **owner: Any) -> Any:
    fields: dict[str, Any] = {"state": state, "lost": False, "disk_full": False, "held": False, "denied": False}
    fields["breaker"] = SimpleNamespace(closed=True)
    return SimpleNamespace(owner=SimpleNamespace(**{**fields, **owner}))


def test_the_worst_trouble_of_a_shard() -> None:
    assert trouble_of(None, silent=False) == ""
    assert trouble_of(None, silent=True) == "unreachable"
    assert trouble_of(shard(ShardState.OPENING), silent=True) == "unreachable"
    assert trouble_of(shard(ShardState.OPENING), silent=False) == ""
    opened = SimpleNamespace(closed=False)
    assert trouble_of(shard(lost=True, breaker=opened), silent=True) == "unreachable"
    assert trouble_of(shard(breaker=opened), silent=True) == "hanging", "the breaker opens because of that"
    assert trouble_of(shard(lost=True, denied=True, breaker=opened), silent=True) == "denied", "no server to restart"
    assert trouble_of(shard(disk_full=True, breaker=opened), silent=False) == "disk_full"
    assert trouble_of(shard(held=True), silent=False) == "clock"
    assert trouble_of(shard(breaker=opened), silent=False) == "breaker_open"
    assert trouble_of(shard(), silent=False) == ""


def test_a_loop_that_is_held_up_is_late() -> None:
    async def late() -> LoopLag:
        lag, loop = LoopLag(), asyncio.get_running_loop()
        lag.start()
        until_s = loop.time() + 0.1 + 2 * LATE_S
        while loop.time() < until_s:
            pass
        assert await until(lambda: lag.late > 0, loop.time() + 60)
        lag.stop()
        return lag

    lag = asyncio.run(late())
    assert lag.late == 1 and sum(lag.seconds.counts) >= 1
    assert lag.take_worst() >= LATE_S
    assert lag.take_worst() == 0.0
