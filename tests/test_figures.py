"""Figures agree with the structs of the contract, and two hosts' figures make one by the rules of their fields."""

from __future__ import annotations

from typing import Any

import pytest

from foqs import figures
from foqs.figures import (
    MOST_ERRORS,
    ActiveTopic,
    ConsumerStats,
    FailingGroup,
    FailingTopic,
    HookStats,
    HostStatus,
    QuotaStatus,
    ShardStatus,
    TenantStats,
    ThrottleStats,
    TopicStats,
    TopicStatus,
    WorkerStats,
    from_struct,
    merge_into,
    merged,
    to_struct,
)
from foqs.idl import idl

KINDS: list[Any] = [ActiveTopic, WorkerStats, TenantStats, HookStats, TopicStats, ThrottleStats]
KINDS += [ShardStatus, TopicStatus, QuotaStatus, HostStatus, ConsumerStats, FailingGroup, FailingTopic]


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_has_a_field_for_each_figure(kind: Any) -> None:
    name = figures._STRUCTS.get(kind, kind.__name__)
    assert sorted(one[1] for one in getattr(idl, name).thrift_spec.values()) == sorted(kind._fields)


def test_a_struct_and_back() -> None:
    tenant, more = TenantStats("a", 2, 3, 1, 0.5, 0.25), TenantStats("", 1, 1)
    stats = TopicStats(
        7, policy={"paused": False}, missing=("b:1",), workers=(WorkerStats("w", 1, 2, 3),), tenants=(tenant,),
        more_tenants=more, hooks=(HookStats("on_enqueue", "route", last_errors=("x",)),), overruled={"ttl_ms": "why"},
    )  # fmt: skip
    struct = to_struct(stats, policy="{}")
    assert (struct.ready, struct.policy, struct.missing) == (7, "{}", ["b:1"])
    assert struct.tenants == [idl.TenantStats("a", 2, 3, 1, 0.5, 0.25, False, "")]
    assert struct.hooks[0].last_errors == ["x"]
    assert from_struct(TopicStats, struct, policy={"paused": False}) == stats


def test_absent_fields_have_defaults() -> None:
    assert from_struct(ThrottleStats, idl.ThrottleStats("k")) == ThrottleStats("k")
    assert from_struct(TopicStats, idl.GetTopicStatsResponse(1, 2, 3), policy={}) == TopicStats(1, 2, 3)
    assert from_struct(HookStats, idl.HookStats("on_failure", "retry")) == HookStats("on_failure", "retry")


def test_each_field_has_its_rule() -> None:
    one = ActiveTopic("n", "t", 1, 9, ("b",), None, 2)
    assert merged(one, ActiveTopic("n", "t", 2, 5, ("a", "b"), None, 3)) == ActiveTopic(
        "n", "t", 3, 5, ("a", "b"), None, 5
    )
    assert merged(one, ActiveTopic("n", "t", 0, 0)).oldest_ready_at_ms == 9, "0: no item is ready there"
    here = ThrottleStats("k", tokens=1.5, coordinator="a:1", longest_wait_ms=3, per_second=1.0)
    there = ThrottleStats("k", parked_flows=2, longest_wait_ms=2, per_second=2.0)
    assert merged(here, there) == merged(there, here)._replace(per_second=1.0)
    assert merged(here, there) == here._replace(parked_flows=2)


def test_a_script_keeps_its_last_errors() -> None:
    one, other = (HookStats("h", "s", last_errors=tuple(f"{at}{host}" for at in range(4))) for host in "ab")
    found = merged(one, other._replace(breaker_open=True)).last_errors
    assert found == ("1b", "2a", "2b", "3a", "3b") and len(found) == MOST_ERRORS


def test_figures_are_added_by_name() -> None:
    known = {"w": WorkerStats("w", 1, 5, 2)}
    merge_into(known, [WorkerStats("w", 2, 3, 1), WorkerStats("x", 4)])
    assert known == {"w": WorkerStats("w", 3, 5, 2), "x": WorkerStats("x", 4)}
