"""Scripts in their processes, behind a host of `foqs dev`: what producers and consumers see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from foqs.client import Client, FailureCause, FoqsError, Invalid, ItemSpec, Producer, Unavailable
from foqs.client.operator_types import HookStats
from tests.admin.scraping import Scrape, admin
from tests.api.hosts import PATIENT, HostProcess, dev
from tests.support.waiting import wait_until

ROUTE = """
function on_enqueue(item)
  local customer = item.headers.customer or ""
  if customer == "none" then return {refuse = "no such customer"} end
  return {fairness_key = customer, weight = foqs.get("plans/" .. customer) == "gold" and 4 or 1}
end
"""
DECIDE = """
function on_failure(item)
  if item.reason == "no such user" then return {action = "dead"} end
  if item.headers.kind == "ping" then return {action = "drop"} end
  if item.cause == "expired" then return {action = "dead"} end
  return {action = "retry", delay_ms = 0}
end
"""
FAILING = "function on_enqueue(item) if item.headers.fail then error('no ' .. item.headers.fail) end end"
THROTTLING = FAILING + " -- throttle_keys"
_namespaces = count()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with dev(tmp_path_factory.mktemp("host"), "--shards", "2", **PATIENT) as running:
        yield running
        assert running.stop() == 0
        assert running.faults() == []


@pytest.fixture
def client(host: HostProcess) -> Iterator[Client]:
    address = "{}:{}".format(*host.address)
    with Client(address, f"n{next(_namespaces)}", timeout_ms=60_000, routing=False) as made:
        yield made


def hook(client: Client, source: str, more: dict[str, str] | None = None, **policy: Any) -> None:
    defined = [name for name in ("on_enqueue", "on_failure") if f"function {name}" in source]
    hooks = dict.fromkeys(defined, "script") | policy.pop("hooks", {})
    entries = {"topic.jobs": json.dumps({"hooks": hooks} | policy), "script.script": source}
    client.put_settings(entries | (more or {}))


def stats(client: Client) -> HookStats:
    (found,) = client.topic_stats("jobs").hooks
    return found


def refusal(client: Client, **headers: str) -> FoqsError:
    """Return the error of one item, asked for once."""
    (error,) = client.enqueue_many([ItemSpec("jobs", b"x", headers=headers)], timeout_ms=900)
    assert isinstance(error, FoqsError), error
    return error


def test_a_script_gives_each_customer_its_tenant(client: Client) -> None:
    hook(client, ROUTE, {"plans/acme": "gold"})
    specs = [ItemSpec("jobs", f"{at}".encode(), headers={"customer": name}) for at, name in enumerate("ab" * 150)]
    ids = client.enqueue_many([*specs, ItemSpec("jobs", b"last", headers={"customer": "acme"})])
    assert all(isinstance(one, int) for one in ids)
    tenants = {one.fairness_key: (one.weight, one.ready) for one in client.topic_stats("jobs").tenants}
    assert tenants == {"a": (1, 150), "b": (1, 150), "acme": (4, 1)}
    items = {item.id: item for item in client.dequeue("jobs", 1_000)}
    assert [items[item_id].payload for item_id in ids if isinstance(item_id, int)][-1] == b"last"
    assert (stats(client).calls, stats(client).failures) == (301, 0)


def test_a_changed_entry_counts_from_the_next_item(client: Client) -> None:
    hook(client, ROUTE)
    for plan, weight in (("free", 1), ("gold", 4)):
        client.put_settings({"plans/acme": plan})
        client.enqueue("jobs", b"x", headers={"customer": "acme"})
        assert [one.weight for one in client.topic_stats("jobs").tenants] == [weight]


def test_a_script_may_refuse_an_item(client: Client) -> None:
    hook(client, ROUTE)
    outcomes = client.enqueue_many([ItemSpec("jobs", b"x", headers={"customer": name}) for name in ("a", "none")])
    assert isinstance(outcomes[0], int)
    assert isinstance(outcomes[1], Invalid)
    assert outcomes[1].message == "no such customer"


def test_items_of_a_producer_and_with_keys_run_the_script(client: Client) -> None:
    hook(client, ROUTE)
    with Producer(client) as producer:
        futures = [
            producer.enqueue("jobs", b"x", headers={"customer": f"c{at % 3}"}, dedup_key=f"{at % 30}")
            for at in range(60)
        ]
        assert len({future.result() for future in futures}) == 30
    assert {item.fairness_key for item in client.dequeue("jobs", 100)} == {"c0", "c1", "c2"}


def test_a_script_decides_about_nacks(client: Client) -> None:
    hook(client, DECIDE)
    client.enqueue("jobs", b"x", headers={"kind": "mail"})
    (item,) = client.dequeue("jobs")
    client.nack(item, failed=True, reason="451")
    (item,) = client.dequeue("jobs", wait_ms=10_000)
    assert item.attempt == 2
    client.nack(item, failed=True, reason="no such user")
    (dead,) = client.dequeue("jobs.dlq", wait_ms=10_000)
    assert dead.id == item.id
    (group,) = client.list_failures("jobs.dlq").groups
    assert (group.cause, group.sample_reason) == (FailureCause.HOOK, "no such user")


def test_a_script_may_drop_an_item(client: Client, host: HostProcess) -> None:
    hook(client, DECIDE)
    client.enqueue("jobs", b"x", headers={"kind": "ping"})
    (item,) = client.dequeue("jobs")
    client.nack(item, failed=True)
    assert client.dequeue("jobs") == []
    found = client.topic_stats("jobs")
    assert (found.ready, found.delayed, found.leased) == (0, 0, 0)
    assert Scrape(admin(host)).sum("foqs_items_removed_total", namespace=client.namespace, cause="hook") == 1


def test_a_script_decides_about_a_lease_that_ended(client: Client) -> None:
    hook(client, DECIDE)
    client.enqueue("jobs", b"x")
    (item,) = client.dequeue("jobs", lease_ms=200)
    (dead,) = client.dequeue("jobs.dlq", wait_ms=20_000)
    assert dead.id == item.id
    (group,) = client.list_failures("jobs.dlq").groups
    assert group.cause == FailureCause.HOOK


@pytest.mark.parametrize("source", [FAILING, THROTTLING])
def test_three_failures_open_the_breaker(client: Client, source: str) -> None:
    hook(client, source)
    refuses = source is THROTTLING
    for at in range(3):
        if refuses:
            error = refusal(client, fail=f"{at}")
            assert isinstance(error, Unavailable)
            assert error.message == "the on_enqueue hook failed (error of script.script)"
        else:
            client.enqueue("jobs", b"x", headers={"fail": f"{at}"})
    found = stats(client)
    assert (found.calls, found.failures, found.breaker_open) == (3, 3, True)
    assert 0 < found.retry_after_ms <= 10_000
    assert [error.split(" ", 1)[1] for error in found.last_errors] == [f"error: script:1: no {at}" for at in range(3)]
    if refuses:
        error = refusal(client)
        assert error.message == "the on_enqueue hook failed (open of script.script)"
        assert 0 < (error.retry_after_ms or 0) <= 10_000
    else:
        client.enqueue("jobs", b"x")
    assert stats(client).calls == 3
    assert client.topic_stats("jobs").ready == (0 if refuses else 4)


def test_a_script_that_hangs_holds_up_no_other_topic(client: Client) -> None:
    hook(client, "function on_enqueue(item) while true do end end", hooks={"when_broken": "default"})
    outcomes = client.enqueue_many([ItemSpec("jobs" if at % 2 else "plain", b"x") for at in range(100)])
    assert all(isinstance(one, int) for one in outcomes)
    assert stats(client).breaker_open
    assert stats(client).last_errors[0].endswith("timeout: the script took more than 10 ms of processor time")


def test_a_script_with_an_error_is_not_stored(client: Client) -> None:
    sources = {
        "script.a": "function on_enqueue(item)\n  return {)\nend",
        "script.b": "x = 1",
        "script.c": "function on_enqueue(item)",
        "script.d": "error('no')",
        "script.e": "while true do end",
    }
    with pytest.raises(Invalid) as raised:
        client.put_settings(sources)
    assert raised.value.message.split("\n") == [
        "script.a: a:2: unexpected symbol near ')'",
        "script.b: the script defines neither on_enqueue nor on_failure",
        "script.c: c:1: 'end' expected near <eof>",
        "script.d: d:1: no",
        "script.e: the script took more than 10 ms of processor time",
    ]
    assert client.settings().entries == {}


def test_scripts_are_tried(client: Client) -> None:
    hook(client, ROUTE, {"plans/acme": "gold"})
    tried = client.try_hook(ItemSpec("jobs", b"x", headers={"customer": "acme"}), script="script")
    assert tried.item == ItemSpec("jobs", b"x", headers={"customer": "acme"}, fairness_key="acme", weight=4)
    assert tried.elapsed_us < 10_000
    failed = client.try_hook(ItemSpec("jobs", b"x"), source="function on_enqueue() return {wait = 1} end")
    assert failed.item is None
    assert failed.error is not None
    assert failed.error.startswith("invalid: there is no field 'wait'")
    later = client.try_hook(ItemSpec("jobs", b"x"), hook="on_failure", source=DECIDE, cause=FailureCause.EXPIRED)
    assert (later.action, later.delay_ms) == ("dead", None)
    assert client.topic_stats("jobs").hooks[0].calls == 0


def test_the_processes_of_scripts_are_counted(client: Client, host: HostProcess) -> None:
    hook(client, ROUTE)
    client.enqueue("jobs", b"x")
    wait_until(lambda: Scrape(admin(host)).sum("foqs_hook_processes") == 2, "both processes")
    scrape = Scrape(admin(host))
    assert scrape.sum("foqs_hook_calls_total") >= 1
    assert scrape.sum("foqs_hook_queued_calls") == 0
