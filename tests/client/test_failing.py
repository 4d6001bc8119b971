"""`foqs failing` and `Client.failing`, and the last failure in other commands: on a real host, and in tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

from foqs.cli.failing import Row, failing_table, rows_of, without_singles
from foqs.cli.look import items_table, last_failure_line
from foqs.client import AsyncClient, Client, FailingGroup, FailingTopic, FailureCause, Item, LastFailure
from foqs.errors import Invalid
from foqs.idl import idl
from tests.api.hosts import foqs
from tests.client.peer import Peer, script
from tests.support.live import client, host, in_terminal

__all__ = ["client", "host"]  # fixtures
Run = Callable[..., "CompletedProcess[str]"]
NOW_MS = 1_795_000_000_000


@pytest.fixture
def run(client: Client) -> Run:
    return lambda *args: foqs(*args, "--ns", client.namespace, "--address", client.address)


def fail(client: Client, topic: str, reason: str, worker: str = "worker-1") -> int:
    item_id = client.enqueue(topic, b"x")
    (item,) = client.dequeue(topic, wait_ms=60_000, worker=worker)
    client.nack(item, failed=True, reason=reason)
    return item_id


def test_what_fails_now(client: Client, run: Run) -> None:
    item_id = fail(client, "mail", "SMTP 451 for 'a'")
    fail(client, "mail", "SMTP 451 for 'b'", "worker-2")
    fail(client, "sms", "refused")
    found = client.failing()
    assert [topic.topic for topic in found.topics] == ["mail", "sms"]
    (group,) = found.topics[0].groups
    assert (group.failures, group.last_minute, group.ended, group.reason) == (2, 2, 0, "SMTP 451 for 'b'")
    assert (group.workers, found.more, found.missing) == (("worker-1", "worker-2"), False, ())
    assert [one.topic for one in client.failing("sms").topics] == ["sms"]
    lines = [json.loads(line) for line in run("failing").stdout.splitlines()]
    assert [(one["topic"], one["cause"], one["failures"]) for one in lines] == [
        ("mail", "failed", 2),
        ("sms", "failed", 1),
    ]
    assert (lines[0]["share_10_minutes"], lines[0]["workers"]) == (1.0, ["worker-1", "worker-2"])
    assert run("failing", "other").stdout == ""

    item = client.get_item(item_id)
    assert item.last_failure is not None
    last = item.last_failure
    assert (last.attempt, last.cause, last.reason) == (1, FailureCause.FAILED, "SMTP 451 for 'a'")
    assert (last.worker, last.fingerprint) == ("worker-1", group.fingerprint)
    assert client.explain(item_id).last_failure == last
    shown = json.loads(run("item", str(item_id)).stdout)["last_failure"]
    assert shown == {
        "attempt": 1, "cause": "FAILED", "reason": "SMTP 451 for 'a'", "fingerprint": group.fingerprint,
        "failed_at_ms": last.failed_at_ms, "worker": "worker-1",
    }  # fmt: skip
    assert json.loads(run("explain", str(item_id)).stdout)["last_failure"] == shown
    assert client.topic_stats("mail").attempts_failed_hour == 2


def test_what_fails_now_in_a_terminal(client: Client) -> None:
    status, shown = in_terminal(client, "failing")
    nothing = f"nothing has failed in namespace {client.namespace} in the last hour (hosts count since they started)\n"
    assert (status, shown) == (0, nothing)
    client.put_settings({"topic.mail": '{"retry": {"kind": "constant", "first_ms": 900000}}'})
    item_id = fail(client, "mail", "SMTP 451")
    status, shown = in_terminal(client, "failing")
    assert status == 0
    header, first, *_ = shown.splitlines()
    assert header.split() == [
        "topic",
        "1",
        "min",
        "10",
        "min",
        "1",
        "h",
        "share",
        "since",
        "last",
        "dead",
        "workers",
        "failure",
    ]
    assert first.split()[:5] == ["mail", "1", "1", "1", "100%"]
    assert first.split()[7:9] == ["0", "worker-1"]
    status, shown = in_terminal(client, "failing", "mail")
    assert shown.splitlines()[0].startswith("1 min")
    status, shown = in_terminal(client, "topic", "stats", "mail")
    assert "1 attempt failed in the last 10 minutes, 1 in the last one: see foqs failing mail" in shown
    status, shown = in_terminal(client, "explain", str(item_id))
    assert "Attempt 1 of 25 failed" in shown
    assert status == 0


def test_the_asynchronous_client_has_it(client: Client) -> None:
    fail(client, "mail", "SMTP 451")

    async def ask() -> Any:
        async with AsyncClient(client.address, client.namespace) as other:
            return await other.failing("mail", limit=1)

    assert asyncio.run(ask()).topics[0].groups[0].reason == "SMTP 451"


def test_wrong_arguments(client: Client, run: Run) -> None:
    with pytest.raises(Invalid, match="limit"):
        client.failing(limit=0)
    assert run("failing", "--limit", "0").returncode == 2


def test_hosts_that_did_not_answer_are_named(peer: Peer) -> None:
    groups = [idl.FailingGroup(1, "0" * 16, 1, 1, 1, 1, reason="why", item_id=7, workers=[])]
    answer = idl.ListFailingResponse([idl.FailingTopic("t", 1, 1, groups)], True, ["h2:1"])
    peer.meddle = script("ListFailing", answer)
    done = foqs("failing", "--limit", "1", "--address", peer.address)
    assert done.returncode == 1
    assert json.loads(done.stdout)["topic"] == "t"
    assert "more topics fail" in done.stderr
    assert done.stderr.endswith("foqs: no answer from h2:1: failures there are not counted\n")


# ------------------------------------------------------------------------------------------ tables


def group(cause: int = 1, count: int = 1, *workers: str, **fields: Any) -> FailingGroup:
    made = FailingGroup(cause, f"{count:016x}", count, count, count, count, 0, NOW_MS - 60_000, NOW_MS - 1_000)
    return made._replace(**{"reason": "why", "item_id": 7, "workers": workers, **fields})


def rows(table: Any) -> list[tuple[str, ...]]:
    return list(zip(*[column._cells for column in table.columns], strict=True))


def test_a_row_for_each_group_by_rate() -> None:
    many = tuple(f"w{number}" for number in range(8))
    topics = [
        FailingTopic("t", 890, 890, (group(1, 10, "w"), group(2, 100, *many, more_workers=True, reason=""))),
        FailingTopic("u", 1_000_000, 0, (group(99, 20),)),
    ]
    table = failing_table(rows_of(topics), NOW_MS, with_topic=True)
    assert [row[0] for row in rows(table)] == ["t", "u", "t"]
    assert [row[4] for row in rows(table)] == ["10%", "<1%", "1%"]
    assert rows(table)[0][5:] == ("1m", "1s", "0", "8+", "expired (item 7)")
    assert rows(table)[1][7:] == ("0", "-", "99: why (item 7)")
    assert rows(table)[2][8:] == ("w", "failed: why (item 7)")


def test_a_share_is_of_the_last_10_minutes() -> None:
    quiet = group()._replace(last_10_minutes=0)
    assert Row(FailingTopic("t", 5, 5, (quiet,)), quiet).share is None


def test_groups_of_one_failure_are_shown_with_the_rest() -> None:
    noise = [group()._replace(fingerprint=f"{number:016x}") for number in range(3)]
    topic = FailingTopic("t", 0, 0, (group(1, 9), *noise, group(0, 5)))
    shown = without_singles(topic)
    assert [(one.cause, one.failures) for one in shown.groups] == [(1, 9), (0, 8)]
    table = failing_table(rows_of([shown]), NOW_MS, with_topic=False)
    assert [row[-1] for row in rows(table)] == ["failed: why (item 7)", "further ones, such as: why (item 7)"]
    without_rest = topic._replace(groups=topic.groups[:-1])
    assert without_singles(without_rest) == without_rest


def test_the_last_failure_of_an_item() -> None:
    last = LastFailure(3, FailureCause.FAILED, "SMTP\n451", 5, NOW_MS - 8_000, "worker-1")
    assert last_failure_line(last, NOW_MS) == "attempt 3 failed 8s ago in worker-1: SMTP 451"
    expired = LastFailure(1_000, FailureCause.EXPIRED, "", 0, NOW_MS)
    assert last_failure_line(expired, NOW_MS) == "attempt 1,000 ended with its lease 0s ago"
    table = items_table([Item(last_failure=last), Item()], NOW_MS)
    assert [row[-1] for row in rows(table)] == ["failed: SMTP 451", "-"]
