"""The hook of enqueues: which items run it, which fields it sets, and how failures of the script are answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from foqs.config.schema import QuotaKeys
from foqs.errors import Invalid, Unavailable, from_code
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, HookKey, Kind
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Slots
from foqs.wire.usual_requests import SpecColumns
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, kinds, messages, routing_of, take

pytestmark = pytest.mark.memory

PLAIN = "function on_enqueue(item) end"
THROTTLING = "function on_enqueue(item) return {throttle_keys = {'api'}} end"
BROKEN = Failed(Kind.ERROR, "route:1: attempt to index a nil value")
OPEN = Failed(Kind.OPEN, "the breaker is open", retry_after_ms=8_000)


def settings(version: int = 1, source: str = PLAIN, more: Mapping[str, str] | None = None, **policy: Any) -> Settings:
    with_hook = {"hooks": {"on_enqueue": "route"}} | policy
    entries = {"topic.t": json.dumps(with_hook), "script.route": source, "plans/acme": "gold"} | dict(more or {})
    return Settings("n", version, entries)


def host_with(function: Any = None, source: str = PLAIN, **policy: Any) -> OneHost:
    host = OneHost(1)
    host.engine.apply_settings(settings(source=source, **policy))
    host.scripts.functions["route"] = function or (lambda _: EnqueueResult())
    return host


def enqueue(host: OneHost, *specs: Any, **fields: Any) -> Any:
    return host.ask("Enqueue", ns="n", items=list(specs), **fields)


def customer(item: Mapping[str, Any]) -> EnqueueResult:
    return EnqueueResult(fairness_key=item["headers"].get("customer"), weight=4)


# ------------------------------------------------------------------------------------------ fields


def test_a_script_reads_the_item_and_the_settings() -> None:
    host = host_with()
    enqueue(host, spec("t", b"12345", headers={"customer": "acme"}, priority=3))
    (call,) = host.scripts.calls
    assert call.item == {"topic": "t", "headers": {"customer": "acme"}, "payload_size": 5, "priority": 3}
    assert (call.key, call.guarded) == (HookKey("n", "t", Hook.ON_ENQUEUE), True)
    assert call.script.source == PLAIN
    assert call.entries.values.keys() == {"topic.t", "plans/acme"}


def test_an_item_gets_the_fields_of_the_script() -> None:
    def route(item: Mapping[str, Any]) -> EnqueueResult:
        return EnqueueResult(None, "acme", 4, ("api", "db"), -2, None, 60_000)

    host = host_with(route, THROTTLING)
    assert kinds(enqueue(host, spec("t", fairness_key="own", throttle_keys=["own"], priority=9))) == [None]
    (item,) = take(host).items
    assert (item.fairness_key, item.throttle_keys, item.priority) == ("acme", ["api", "db"], -2)
    assert item.expires_at_ms - item.enqueued_at_ms == 60_000


def test_fields_that_the_script_does_not_set_are_the_producers() -> None:
    host = host_with(lambda _: EnqueueResult(weight=3))
    enqueue(host, spec("t", fairness_key="own", throttle_keys=["own"], priority=9))
    (item,) = take(host).items
    assert (item.fairness_key, item.throttle_keys, item.priority) == ("own", ["own"], 9)


def test_a_script_may_remove_throttle_keys() -> None:
    host = host_with(lambda _: EnqueueResult(throttle_keys=()), THROTTLING)
    enqueue(host, spec("t", throttle_keys=["own"]))
    (item,) = take(host).items
    assert item.throttle_keys is None


def test_a_scripts_delay_replaces_the_producers_time() -> None:
    host = host_with(lambda _: EnqueueResult(delay_ms=500))
    enqueue(host, spec("t", deliver_after_ms=host.now_ms + 9_000))
    host.wait(499)
    assert take(host).items == []
    host.wait(1)
    assert len(take(host).items) == 1


def test_values_of_the_policy_fill_fields_after_the_script() -> None:
    host = host_with(lambda _: EnqueueResult(), priority=5, ttl_ms=1_000)
    enqueue(host, spec("t"))
    (item,) = take(host).items
    assert (item.priority, item.expires_at_ms - item.enqueued_at_ms) == (5, 1_000)


def test_items_without_headers_have_an_empty_table() -> None:
    host = host_with(customer)
    assert kinds(enqueue(host, spec("t"))) == [None]
    assert host.scripts.calls[0].item["headers"] == {}


# ------------------------------------------------------------------------------------------ which items


def test_items_of_topics_without_a_hook_run_none() -> None:
    host = host_with(customer)
    assert kinds(enqueue(host, spec("u", headers={"customer": "acme"}))) == [None]
    assert host.scripts.calls == []


def test_outcomes_stand_in_the_order_of_the_items() -> None:
    def route(item: Mapping[str, Any]) -> EnqueueResult:
        no = item["headers"].get("no")
        return EnqueueResult(refuse=f"no {no}") if no else EnqueueResult()

    host = host_with(route)
    specs = [spec("u"), spec("t", headers={"no": "1"}), spec("t"), spec(""), spec("t", headers={"no": "4"})]
    response = enqueue(host, *specs)
    assert kinds(response) == [None, Invalid, None, Invalid, Invalid]
    assert messages(response)[1::3] == ["no 1", "no 4"]
    assert len(host.scripts.calls) == 3
    ids = [outcome.id for outcome in response.outcomes if outcome.id]
    assert ids == sorted(ids)


def test_invalid_items_do_not_run_the_script() -> None:
    host = host_with()
    assert kinds(enqueue(host, spec("t", priority=0, lease_ms=1), spec("t"))) == [Invalid, None]
    assert len(host.scripts.calls) == 1


def test_a_script_may_make_an_item_invalid_by_the_hosts_limits() -> None:
    host = host_with(lambda _: EnqueueResult(ttl_ms=host.limits.ttl_max_ms + 1))
    assert kinds(enqueue(host, spec("t"))) == [Invalid]


def test_the_ttl_of_a_script_replaces_the_end_of_one() -> None:
    host = host_with(lambda _: EnqueueResult(ttl_ms=1_000))
    enqueue(host, spec("t", expires_at_ms=host.now_ms + 9_000))
    (item,) = take(host).items
    assert item.expires_at_ms - item.enqueued_at_ms == 1_000


def test_items_of_one_shape_run_the_hook() -> None:
    columns = SpecColumns(spec("t", b"a"))
    columns.payloads, columns.priorities = [b"a", b"bb", b"ccc"], [1, 2, 3]
    host = host_with(lambda item: EnqueueResult(fairness_key=f"k{item['payload_size']}"))
    host.ask("Enqueue", ns="n", items=columns)
    assert {(item.payload, item.fairness_key) for item in take(host).items} == {
        (b"a", "k1"),
        (b"bb", "k2"),
        (b"ccc", "k3"),
    }


_RESULTS: Mapping[str, list[EnqueueResult]] = {
    "tenants and priorities": [EnqueueResult(fairness_key=f"k{n}", priority=n) for n in (7, 5, 6)],
    "tenants": [EnqueueResult(fairness_key=key) for key in ("a", "", "b")],
    "priorities": [EnqueueResult(priority=n) for n in (0, 5, 0)],
    "nothing": [EnqueueResult()] * 3,
    "some tenants": [EnqueueResult(fairness_key="a"), EnqueueResult(), EnqueueResult(fairness_key="b")],
    "weights": [EnqueueResult(fairness_key=f"k{n}", weight=n) for n in (1, 2, 3)],
    "throttles": [EnqueueResult(throttle_keys=("api",)), EnqueueResult(throttle_keys=()), EnqueueResult(priority=2)],
    "delays": [EnqueueResult(delay_ms=0, priority=n) for n in (3, 2, 1)],
    "a refusal": [EnqueueResult(priority=3), EnqueueResult(refuse="no"), EnqueueResult(priority=1)],
}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("policy", [{}, {"priority": 9}])
@pytest.mark.parametrize("results", _RESULTS.values(), ids=_RESULTS)
def test_columns_and_structs_have_the_same_items(
    results: list[EnqueueResult], policy: Mapping[str, Any], keyed: bool
) -> None:
    def items_of(specs: Any) -> Any:
        host = host_with(lambda item: results[item["payload_size"] - 1], source=THROTTLING, **policy)
        host.ask("Enqueue", ns="n", items=specs)
        found = take(host).items
        return [(one.payload, one.priority, one.fairness_key, one.throttle_keys) for one in found]

    columns = SpecColumns(spec("t", b"a", weight=2, dedup_key="1" if keyed else None))
    columns.payloads, columns.priorities = [b"a", b"bb", b"ccc"], [3, 0, 1]
    if keyed:
        columns.dedup_keys = ["1", "2", "3"]
    assert items_of(columns) == items_of(list(columns))
    assert len(items_of(columns)) == 3 - sum(one.refuse is not None for one in results)


def test_items_with_deduplication_keys_run_the_hook() -> None:
    host = host_with(customer)
    keyed = spec("t", headers={"customer": "acme"}, dedup_key="d")
    first, second = enqueue(host, keyed), enqueue(host, keyed)
    assert first.outcomes[0].id == second.outcomes[0].id
    assert [item.fairness_key for item in take(host).items] == ["acme"]


def test_items_that_another_host_forwarded_do_not_run_it_again() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    host.engine.apply_settings(settings())
    host.scripts.functions["route"] = customer
    assert kinds(enqueue(host, spec("t", fairness_key="acme"), context=FORWARDED)) == [None]
    assert host.scripts.calls == []


def test_forwarded_items_carry_the_fields() -> None:
    host = OneHost(routing=routing_of({2: "b"}, slots=Slots(0, (2,) * 1_024, {}, 1)))
    host.engine.apply_settings(settings())
    host.scripts.functions["route"] = customer
    headers = {"customer": "acme"}
    host.call("Enqueue", ns="n", items=[spec("t", headers=headers), spec("t", headers=headers, dedup_key="d")])
    sent = [one for request in host.to("Enqueue") for one in request.request.items]
    assert [(one.fairness_key, one.weight) for one in sent] == [("acme", 4)] * 2


def test_the_quota_is_charged_after_the_hook() -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(stored_items=1)})
    host.engine.apply_settings(settings())
    host.scripts.functions["route"] = lambda item: EnqueueResult(refuse="no" if item["headers"] else None)
    response = enqueue(host, spec("t", headers={"a": "b"}), spec("t"))
    assert kinds(response) == [Invalid, None]


# ------------------------------------------------------------------------------------------ failures


def test_an_item_is_handled_as_without_a_hook_by_default() -> None:
    host = host_with(lambda _: BROKEN)
    assert kinds(enqueue(host, spec("t", fairness_key="own"))) == [None]
    assert [item.fairness_key for item in take(host).items] == ["own"]
    assert host.failed == [(HookKey("n", "t", Hook.ON_ENQUEUE), BROKEN)]


@pytest.mark.parametrize(("failed", "retry_after_ms"), [(BROKEN, 1_000), (OPEN, 8_000)])
def test_a_script_that_may_set_throttle_keys_refuses(failed: Failed, retry_after_ms: int) -> None:
    host = host_with(lambda _: failed, THROTTLING)
    (outcome,) = enqueue(host, spec("t")).outcomes
    error = from_code(outcome.error.code, outcome.error.message, outcome.error.retry_after_ms)
    assert (type(error), error.retry_after_ms) == (Unavailable, retry_after_ms)
    assert error.message == f"the on_enqueue hook failed ({failed.kind} of script.route)"
    assert take(host).items == []


@pytest.mark.parametrize(
    ("source", "when_broken", "kind"), [(THROTTLING, "default", None), (PLAIN, "refuse", Unavailable)]
)
def test_when_broken_wins_over_the_source(source: str, when_broken: str, kind: type | None) -> None:
    host = host_with(lambda _: BROKEN, source, hooks={"on_enqueue": "route", "when_broken": when_broken})
    assert kinds(enqueue(host, spec("t"))) == [kind]


def test_one_failed_call_does_not_fail_its_neighbours() -> None:
    host = host_with(lambda item: BROKEN if item["headers"] else EnqueueResult(fairness_key="acme"), THROTTLING)
    assert kinds(enqueue(host, spec("t"), spec("t", headers={"a": "b"}), spec("t"))) == [None, Unavailable, None]


@pytest.mark.parametrize(("timeout_ms", "within_ms"), [(None, 1_000), (300, 300)])
def test_the_hook_has_a_second_or_the_time_of_the_request(timeout_ms: int | None, within_ms: int) -> None:
    host = host_with()
    host.scripts.held = True
    host.begin("Enqueue", ns="n", items=[spec("t")], context=idl.RequestContext(timeout_ms=timeout_ms))
    assert [within for within, _ in host.scripts.open] == [within_ms]


# ------------------------------------------------------------------------------------------ changed settings


def test_items_run_the_hook_of_the_settings_in_force() -> None:
    host = host_with(lambda _: EnqueueResult(fairness_key="old"))
    host.scripts.held = True
    call = host.begin("Enqueue", ns="n", items=[spec("t")])
    host.engine.apply_settings(settings(2, more={"plans/acme": "free"}))
    host.scripts.functions["route"] = lambda _: EnqueueResult(fairness_key="new")
    host.scripts.held = False
    host.scripts.open.pop()[1]()
    host.run()
    assert kinds(call.answer) == [None]
    assert [one.entries.values["plans/acme"] for one in host.scripts.calls] == ["gold", "free"]
    assert [item.fairness_key for item in take(host).items] == ["new"]


def test_a_topic_closed_while_the_hook_runs_takes_nothing() -> None:
    host = host_with()
    host.scripts.held = True
    call = host.begin("Enqueue", ns="n", items=[spec("t")])
    host.engine.apply_settings(settings(2, closed=True))
    host.scripts.open.pop()[1]()
    host.run()
    assert kinds(call.answer) == [Unavailable]
