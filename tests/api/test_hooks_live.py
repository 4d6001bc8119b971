"""Scripts in their processes, behind a host of `foqs dev`: what producers and consumers see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.client import Client, FailureCause, FoqsError, Invalid, ItemSpec, Unavailable
from foqs.figures import HookStats
from tests.admin.scraping import Scrape, admin
from tests.api.hosts import HostProcess
from tests.support.live import client, host
from tests.support.waiting import wait_until

__all__ = ["client", "host"]  # fixtures
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


def test_the_processes_of_scripts_are_counted(client: Client, host: HostProcess) -> None:
    hook(client, ROUTE)
    client.enqueue("jobs", b"x")
    wait_until(lambda: Scrape(admin(host)).sum("foqs_hook_processes") == 2, "both processes")
    scrape = Scrape(admin(host))
    assert scrape.sum("foqs_hook_calls_total") >= 1
    assert scrape.sum("foqs_hook_queued_calls") == 0
