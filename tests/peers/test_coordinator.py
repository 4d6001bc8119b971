"""The protocol of borrowed units at the coordinator: the same rules for each unit."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.config.schema import QuotaKeys
from foqs.errors import NotServed
from foqs.idl import idl
from foqs.limits.bucket import TTL_MS
from foqs.peers.coordinator import BEAT_MS
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, routing_of

pytestmark = pytest.mark.memory

ENTRIES = {"throttle.rate": '{"per_second": 100, "burst": 9}', "throttle.most": '{"concurrency": 9}'}
IDLE_MS = 11_000


def quota(host: OneHost, number: int) -> int | None:
    answer = host.ask("TakeTokens", ns="n", holder="h", number=number, wanted=1, held=0, back=0)
    return None if isinstance(answer, NotServed) else answer.granted


def tokens(host: OneHost, number: int) -> int | None:
    asked = idl.TokenAsk("n", "rate", number, 1, 0, 0)
    return host.ask("Lend", holder="h", tokens=[asked], slots=[]).tokens[0].granted


def slots(host: OneHost, number: int) -> int | None:
    epoch = max([shard.owner.epoch for shard in host.engine.state.serving], default=1)
    asked = idl.SlotAsk("n", "most", 1, epoch, number, 0, 0, 1)
    return host.ask("Lend", holder="h", tokens=[], slots=[asked]).slots[0].granted


UNITS = {"quota": quota, "tokens": tokens, "slots": slots}


@pytest.fixture(params=UNITS)
def unit(request: Any) -> str:
    return request.param  # type: ignore[no-any-return]


def host_of(*shards: int, owner: str = "a") -> OneHost:
    quotas = {"n": QuotaKeys(enqueues_per_second=100, burst=9)}
    host = OneHost(*shards, routing=routing_of({1: owner}), quotas=quotas)
    host.settings.apply(Settings("n", 1, ENTRIES))
    return host


def first_ms(host: OneHost, unit: str) -> int:
    """Return the time until a unit is lent."""
    waited_ms = 0
    while not UNITS[unit](host, 1 + host.monotonic_ms):
        host.wait(10)
        waited_ms += 10
        assert waited_ms < 10_000
    return waited_ms


def pass_ms(host: OneHost, ms: int) -> None:
    for _ in range(ms // 50):
        host.wait(50)


def test_nothing_is_lent_while_earlier_units_may_be_used(unit: str) -> None:
    assert TTL_MS <= first_ms(host_of(1), unit) <= BEAT_MS + TTL_MS + 100


def test_a_coordinator_of_long_standing_lends_at_once(unit: str) -> None:
    host = host_of(1)
    pass_ms(host, BEAT_MS + TTL_MS + 100)
    assert first_ms(host, unit) <= 20, "the leases of the shard are counted first"


def test_another_epoch_of_the_shard_waits_again(unit: str) -> None:
    """Another host had it in between, and its units may be in use still."""
    host = host_of(1)
    pass_ms(host, BEAT_MS + TTL_MS + 100)
    first_ms(host, unit)
    host.engine.state.shards[1].owner.epoch += 1
    assert first_ms(host, unit) >= TTL_MS


def test_a_host_without_the_slot_lends_nothing(unit: str) -> None:
    assert UNITS[unit](host_of(owner="b"), 1) is None


def test_an_earlier_question_that_arrives_late_gets_nothing(unit: str) -> None:
    host = host_of(1)
    pass_ms(host, BEAT_MS + TTL_MS + 100)
    first_ms(host, unit)
    assert not UNITS[unit](host, 1)


def test_a_ledger_is_forgotten_when_no_unit_is_out(unit: str) -> None:
    """It is kept while a host may have units, and in any case while a new ledger would have to count or fill up."""
    host = host_of(1)
    pass_ms(host, BEAT_MS + TTL_MS + 100)
    first_ms(host, unit)
    assert host.lending.coordinator.keys(unit)
    host.settings.apply(Settings("n", 2, {}))
    pass_ms(host, IDLE_MS)
    left = host.lending.coordinator.keys(unit)
    assert bool(left) == (unit == "slots"), "the slot that is lent has an owner"
