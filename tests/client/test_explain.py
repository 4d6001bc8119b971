"""`foqs explain` and `Client.explain`: on a real host, and answers of a newer server."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from foqs.cli.look import code_name, headline, reasons_table, shown
from foqs.client import Client, ExplainLimit, ExplainReason, Explanation, Invalid, ItemState, LimitKind, Reason
from foqs.idl import idl
from tests.api.hosts import foqs
from tests.client.peer import Peer, script
from tests.support.live import client, host

__all__ = ["client", "host"]  # fixtures
Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def run(client: Client) -> Run:
    return lambda *args: foqs("explain", *args, "--ns", client.namespace, "--address", client.address)


def codes(found: Explanation) -> list[Reason | int]:
    return [reason.code for reason in found.reasons]


def test_an_item_and_a_topic_are_explained(client: Client) -> None:
    item_id = client.enqueue("t", b"x", delay_ms=3_600_000)
    found = client.explain(item_id)
    (reason,) = found.reasons
    assert (reason.code, found.state, found.eta_ms) == (Reason.DELAYED, ItemState.DELAYED, None)
    assert reason.until_ms == client.get_item(item_id).deliver_after_ms
    assert client.explain(hex(item_id)).reasons[0].until_ms == reason.until_ms
    topic = client.explain_topic("t")
    assert (codes(topic), topic.reasons[0].count, topic.state) == ([Reason.DELAYED], 1, None)
    assert codes(client.explain_topic("none")) == [Reason.GONE]
    assert codes(client.explain(item_id + 1)) == [Reason.GONE]
    with pytest.raises(Invalid):
        client.explain("t")


def test_the_command_writes_json_beside_a_terminal(client: Client, run: Run) -> None:
    item_id = client.enqueue("9", b"x")
    (item,) = client.dequeue("9", wait_ms=60_000, worker="w")
    done = run(str(item_id))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    (reason,) = document["reasons"]
    assert (document["state"], reason["code"], reason["by"]) == ("leased", "leased", "w")
    assert reason["until_ms"] == item.lease_expires_at_ms
    assert json.loads(run("9").stdout)["reasons"][0]["code"] == "gone", "it is read as an id"
    leased = json.loads(run("9", "--topic", "--json").stdout)["reasons"][0]
    assert (leased["code"], leased["count"]) == ("leased", 1)
    assert f"foqs items 9 --ns {client.namespace} --state leased" in leased["text"]


def test_items_come_with_ledgers_where_they_are_asked_for(client: Client) -> None:
    assert client.dequeue("t", ledger=True) == []
    client.enqueue("t", b"x", priority=1)
    client.enqueue("t", b"y", priority=2)  # with one priority and one millisecond, the ids would decide
    client.enqueue("t", b"urgent")
    (urgent,) = client.dequeue("t", wait_ms=60_000, ledger=True)
    first, second = client.dequeue("t", 2, wait_ms=60_000, ledger=True)
    assert [item.ledger and item.ledger.overtaken for item in (urgent, first, second)] == [0, 1, 1]
    assert first.ledger is not None
    assert first.ledger.waited_ms >= 0
    client.enqueue("t", b"z")
    (plain,) = client.dequeue("t", wait_ms=60_000)
    assert plain.ledger is None


@pytest.mark.parametrize(
    ("code", "kind", "estimate_ms", "said"),
    [
        (Reason.THROTTLED, LimitKind.RATE, 1_980_000, "≈33m"),
        (Reason.CONCURRENCY, LimitKind.CONCURRENCY, 30_000, "≈30s"),
        (Reason.THROTTLED, LimitKind.CONCURRENCY, 30_000, "14s"),
        (Reason.CONCURRENCY, LimitKind.CONCURRENCY, None, "14s"),
    ],
)
def test_the_wait_for_a_throttle_is_that_of_the_item_itself(
    code: Reason, kind: LimitKind, estimate_ms: int | None, said: str
) -> None:
    """The next token, at `until_ms`, may be another item's."""
    own = ExplainLimit(kind, "smtp:gmx", "", estimate_ms=estimate_ms)
    other = ExplainLimit(kind, "api", "", estimate_ms=7)
    found = Explanation((ExplainReason(code, "", 15_700, "smtp:gmx"),), limits=(other, own))
    table = reasons_table(found, 1_000)
    assert list(table.columns[1].cells) == [said]
    topic = reasons_table(found._replace(limits=()), 1_000)
    assert list(topic.columns[1].cells) == ["14s"], "of a topic, the next token is for its first item"


def test_a_terminal_gets_a_headline_and_a_table() -> None:
    behind = ExplainReason(Reason.BEHIND_IN_LANE, "5 more", count=5)
    found = Explanation((ExplainReason(Reason.PAUSED, "why", until_ms=61_000), behind), 42_000, ItemState.READY)
    assert headline("item 7", found) == "item 7 (ready), delivered in about 42s"
    free = Explanation((), None, ItemState.READY)
    assert headline("item 7", free) == "item 7 (ready): nothing keeps it from being delivered now"
    assert headline("topic t", Explanation(())) == "topic t: nothing keeps its items from being delivered now"
    ended = Explanation((), None, ItemState.FAILED)
    assert headline("item 7", ended) == "item 7 (failed): it has ended, and its topic keeps it for a time"
    table = reasons_table(found, 1_000)
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["paused", "behind_in_lane"], ["1m", "-"], ["why", "5 more"]]
    assert [column.header for column in table.columns] == ["reason", "until", "why"]


def test_json_leaves_out_unknown_values() -> None:
    assert shown(Explanation(())) == {"reasons": []}
    found = Explanation((ExplainReason(Reason.THROTTLED, "why", key="k", count=0),), 5, ItemState.READY)
    reason = {"code": "throttled", "text": "why", "key": "k", "count": 0}
    assert shown(found) == {"reasons": [reason], "eta_ms": 5, "state": "ready"}


def test_reasons_of_the_contract_and_of_a_newer_server(peer: Peer) -> None:
    assert {one.name: int(one) for one in Reason} == {
        name: value for name, value in idl.Reason._NAMES_TO_VALUES.items() if value
    }
    peer.meddle = script("ExplainItem", idl.ExplainItemResponse([idl.ExplainReason(99, "new", by="b")], 7))
    with Client(peer.address, routing=False) as client:
        found = client.explain(5)
    assert found == Explanation((ExplainReason(99, "new", by="b"),), 7)
    assert code_name(found.reasons[0]) == "99"
