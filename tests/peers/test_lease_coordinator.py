"""Slots of throttle keys in a cluster: which shards are counted, and what hosts hear of each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.limits.bucket import TTL_MS
from foqs.peers.coordinator import HashSlotOwners
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import OneHost, routing_of

pytestmark = pytest.mark.memory
GPU = {"throttle.gpu": '{"concurrency": 2, "timeout_ms": 1000}'}


def host_of(owners: dict[int, str], *shards: int) -> OneHost:
    """A host that has observed its slots for long enough to lend."""
    host = OneHost(*shards, routing=routing_of(owners))
    host.settings.apply(Settings("n", 1, GPU))
    for _ in range(5 + TTL_MS // 500):
        host.wait(500)
    return host


def report(host: OneHost, number: int, shard: int = 2, **fields: Any) -> Any:
    asked = {"epoch": 3, "has": 0, "leased": 0, "wanted": 1, **fields}
    asked = idl.SlotAsk(ns="n", key="gpu", shard=shard, number=number, **asked)
    call = host.call("Lend", holder="h", tokens=[], slots=[asked])
    host.wait(20)
    (grant,) = call.answer.slots
    return grant


def counted(host: OneHost, *shards: Any) -> None:
    """The other host answers the open question about its shards."""
    host.reply("CountSlots", idl.CountSlotsResponse([idl.SlotCount(*one) for one in shards]))


def test_nothing_is_lent_before_the_other_hosts_have_counted() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    assert (report(host, 1).granted, report(host, 2).granted) == (0, 0)
    (asked,) = host.to("CountSlots")
    assert (asked.address, [key.key for key in asked.request.keys], asked.request.shards) == ("b:1", ["gpu"], [1, 2])
    counted(host, (2, 3, 10, [1]))
    assert report(host, 11, has=1, leased=1).granted == 1


def test_hosts_are_asked_again_that_did_not_answer() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    report(host, 1)
    host.reply("CountSlots", Unavailable("gone"))
    for _ in range(2):
        host.wait(500)
    counted(host, (2, 3, 10, [-1]))  # its settings are older
    for _ in range(2):
        host.wait(500)
    assert report(host, 11).granted == 0
    counted(host, (2, 3, 12, [0]))
    assert report(host, 13, wanted=5).granted == 2


def test_a_shard_without_an_owner_is_given_up_after_the_timeout() -> None:
    host = host_of({1: "a"}, 1)
    host.learn(routing_of({1: "a"}, unowned=[2]))
    assert report(host, 1, shard=1, epoch=host.engine.state.shards[1].owner.epoch).granted == 0
    for _ in range(4):
        host.wait(500)
    assert report(host, 100, shard=1, epoch=host.engine.state.shards[1].owner.epoch).granted == 1
    (stats,) = host.ask("GetThrottles", ns="n").throttles
    assert stats.reclaimed == 1


def test_a_removed_shard_is_not_waited_for() -> None:
    """An operator disables a shard and removes it while a new coordinator counts."""
    host = host_of({1: "a"}, 1)
    epoch = host.engine.state.shards[1].owner.epoch
    host.learn(routing_of({1: "a"}, unowned=[2]))
    assert report(host, 1, shard=1, epoch=epoch).granted == 0
    host.wait(500)
    host.learn(routing_of({1: "a"}))
    assert report(host, 100, shard=1, epoch=epoch).granted == 1
    host.learn(routing_of({1: "a", 2: "b"}))
    assert report(host, 101, shard=1, epoch=epoch, has=1, wanted=1).granted == 0, "it is back, and not counted"
    host.wait(500)
    counted(host, (2, 3, 10, [0]))
    assert report(host, 102, shard=1, epoch=epoch, has=1, wanted=1).granted == 1


def test_slots_of_a_removed_shard_are_lent_again() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    epoch = host.engine.state.shards[1].owner.epoch
    report(host, 1)
    counted(host, (2, 3, 10, [0]))
    assert report(host, 11, wanted=2).granted == 2
    assert report(host, 12, shard=1, epoch=epoch).granted == 0
    host.learn(routing_of({1: "a"}))
    assert report(host, 13, shard=1, epoch=epoch, wanted=2).granted == 2


def test_a_disabled_shard_is_given_up_after_the_longest_lease() -> None:
    """Also where the throttle waits for shards without a bound."""
    host = host_of({1: "a"}, 1)
    epoch = host.engine.state.shards[1].owner.epoch
    host.settings.apply(Settings("n", 2, {"throttle.gpu": '{"concurrency": 2, "timeout_ms": 0}'}))
    host.learn(replace(routing_of({1: "a"}, unowned=[2]), disabled=frozenset({2})))
    assert report(host, 1, shard=1, epoch=epoch).granted == 0
    config = host.engine.state.config
    limits = config.limits.model_copy(update={"lease_max_ms": 3_000})
    host.engine.state.config = config.model_copy(update={"limits": limits})
    for number in range(4):
        host.wait(500)
        assert report(host, 2 + number, shard=1, epoch=epoch).granted == 0
    for _ in range(3):
        host.wait(500)
    assert report(host, 100, shard=1, epoch=epoch).granted == 1


def test_the_owner_of_a_shard_that_waits_hears_of_a_free_slot() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    report(host, 1)
    counted(host, (2, 3, 10, [0]))
    assert report(host, 11, wanted=2).granted == 2
    assert report(host, 12, shard=1, epoch=host.engine.state.shards[1].owner.epoch).granted == 0
    (sent,) = host.to("TellSlots")
    assert [(one.key, one.shard) for one in sent.request.news] == [("gpu", 2)]


def test_a_replaced_owner_counts_nothing() -> None:
    """Its database says that another host has the shard."""
    host = host_of({1: "a", 2: "b"}, 1)
    host.dbs[1].epoch += 1
    call = host.call("CountSlots", keys=[idl.SlotKey("n", "gpu")], shards=[1])
    for _ in range(3):
        host.wait(500)
    assert call.answer.shards == []


def test_shards_that_do_not_answer_in_time_are_left_out() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    found: list[Any] = []
    shard = host.engine.state.shards[1]
    checks: list[Any] = []
    timers: list[Any] = []
    owners: Any = SimpleNamespace(check=lambda one, then: checks.append(then), _later=lambda ms, do: timers.append(do))
    HashSlotOwners.census(owners, [shard, shard], lambda one: one.number, 1, found.append)
    checks[0](True)
    timers[0]()
    checks[1](True)  # later
    assert found == [{1: 1}]


def test_news_make_an_owner_report() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    response = host.ask("Enqueue", ns="n", items=[spec("t", b"x", throttle_keys=["gpu"])])
    assert response.outcomes[0].error is None
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
    host.wait(5)
    before = len(host.to("Lend"))
    host.ask("TellSlots", news=[idl.SlotNews("n", "gpu", 1), idl.SlotNews("n", "gpu", 9), idl.SlotNews("n", "x", 1)])
    host.wait(5)
    assert len(host.to("Lend")) >= before


def test_slots_of_a_shard_that_lost_its_owner_come_back() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    report(host, 1)
    counted(host, (2, 3, 10, [0]))
    assert report(host, 11, wanted=2).granted == 2
    host.learn(routing_of({1: "a"}, unowned=[2]))
    own = {"shard": 1, "epoch": host.engine.state.shards[1].owner.epoch}
    assert report(host, 100, **own).granted == 0
    for _ in range(4):
        host.wait(500)
    assert report(host, 101, **own).granted == 1


def test_a_shard_that_the_coordinator_does_not_know_gets_no_slot() -> None:
    host = host_of({1: "a"}, 1)
    assert report(host, 1, shard=7).granted is None


def test_a_host_with_older_settings_counts_nothing() -> None:
    host = host_of({1: "a", 2: "b"}, 1)
    call = host.call("CountSlots", keys=[idl.SlotKey("n", "gpu", 2), idl.SlotKey("n", "gpu", 1)], shards=[1])
    for _ in range(3):
        host.wait(500)
    (one,) = call.answer.shards
    assert one.leased == [-1, 0]
