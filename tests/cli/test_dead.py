"""`foqs dead` on a host of `foqs dev`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foqs.checks import parse_fingerprint, shown_fingerprint
from foqs.cli.dead import groups_table
from foqs.client import Client, FailureCause, FailureGroup, ItemState
from foqs.errors import Invalid
from foqs.idl import idl
from tests.api.hosts import HostProcess, foqs
from tests.api.wire import Wire
from tests.client.peer import Act, Peer, script
from tests.support.live import Run, client, host, in_terminal, lines, remaining, run

__all__ = ["client", "host", "run"]
DEAD = "t.dlq"


@pytest.fixture
def wire(host: HostProcess, client: Client) -> Iterator[Wire]:
    with Wire(host.address, client.namespace) as made:
        yield made


def dead(wire: Wire, *reasons: str) -> list[int]:
    """Store an item for each of `reasons` and reject it for that reason."""
    ids = []
    for reason in reasons:
        ids += wire.put("t", reason.encode(), headers={"a": "b"})
        assert wire.nack(wire.one("t"), wire.ns, reject=True, reason=reason) == 0
    return ids


def test_the_groups_of_dead_letters(client: Client, run: Run, wire: Wire) -> None:
    ids = dead(wire, "timeout after 5 ms", "timeout after 71 ms", "no route")
    first, second = lines(run("dead", "list", DEAD))
    assert (first["cause"], first["count"]) == ("rejected", 2)
    assert first["sample_reason"] in ("timeout after 5 ms", "timeout after 71 ms")
    assert (second["count"], int(second["sample_id"])) == (1, ids[2])
    assert lines(run("dead", "list", DEAD, "--cause", "expired")) == []
    status, shown = in_terminal(client, "dead", "list", DEAD)
    assert status == 0
    assert "no route" in shown and first["fingerprint"] in shown
    status, shown = in_terminal(client, "dead", "list", "t")
    assert (status, " ".join(shown.split())) == (
        0,
        f"topic t in namespace {client.namespace} has no such dead letters; its dead letters are in t.dlq",
    )
    (item,) = [one for one in lines(run("items", DEAD)) if int(one["id"]) == ids[2]]
    assert (item["failure"]["reason"], item["failure"]["fingerprint"]) == ("no route", second["fingerprint"])
    assert "rejected:" in in_terminal(client, "items", DEAD)[1]


def test_a_canary_a_group_and_all(client: Client, run: Run, wire: Wire) -> None:
    dead(wire, "timeout 1", "timeout 2", "timeout 3", "no route", "other")
    assert run("dead", "redrive", DEAD, "--dry-run").stdout == "5 items would be redriven from t.dlq\n"
    assert run("dead", "redrive", DEAD, "--per-fingerprint", "1").stdout == "3 items redriven from t.dlq\n"
    (group,) = lines(run("dead", "list", DEAD))
    done = run("dead", "redrive", DEAD, "--fingerprint", group["fingerprint"], "--count", "1", "--cause", "rejected")
    assert done.stdout == "1 item redriven from t.dlq\n"
    leased = wire.one(DEAD)
    assert run("dead", "redrive", DEAD, "--to-topic", "u").stdout == (
        "0 items redriven from t.dlq; 1 leased item stays\n"
    )
    assert wire.nack(leased, wire.ns, release=True) == 0
    assert run("dead", "redrive", DEAD, "--to-topic", "u").stdout == "1 item redriven from t.dlq\n"
    assert len(remaining(client, "t")) == 4
    assert len(remaining(client, "u")) == 1
    assert run("dead", "redrive", DEAD).stdout == "0 items redriven from t.dlq\n"


def test_the_dead_letters_of_one_tenant(client: Client, run: Run, wire: Wire) -> None:
    for key in ("acme", "acme", "zenith", ""):
        client.enqueue("t", b"x", fairness_key=key, throttle_keys=["db"])
        assert wire.nack(wire.one("t"), wire.ns, reject=True, reason="no") == 0
    (group,) = lines(run("dead", "list", DEAD, "--fairness-key", "acme"))
    assert group["count"] == 2
    assert "acme" in in_terminal(client, "items", DEAD)[1]
    assert run("dead", "redrive", DEAD, "--fairness-key", "acme").stdout == "2 items redriven from t.dlq\n"
    assert [(one.fairness_key, one.throttle_keys) for one in client.list_items("t")] == [("acme", ("db",))] * 2
    done = run("dead", "delete", DEAD, "--fairness-key", "", "--yes")
    assert "1 item deleted" in done.stdout
    assert [one.failure and one.failure.fairness_key for one in client.list_items(DEAD)] == ["zenith"]
    assert "fairness_key: a name" in run("dead", "list", DEAD, "--fairness-key", "x" * 256, status=1).stderr


def test_a_slow_pace(run: Run, wire: Wire) -> None:
    dead(wire, *"abc")
    assert run("dead", "redrive", DEAD, "--pace", "20").stdout == "3 items redriven from t.dlq\n"


def test_a_topic_that_is_not_the_one_of_dead_letters(run: Run, wire: Wire) -> None:
    dead(wire, "a")
    assert run("dead", "redrive", "t").stdout == "0 items redriven from t\nits dead letters are in t.dlq\n"
    listed = run("dead", "list", "t")
    assert (listed.stdout, listed.stderr) == ("", "foqs: t has no such dead letters; its dead letters are in t.dlq\n")
    assert run("dead", "list", "t", "--json").stderr == listed.stderr
    assert run("dead", "delete", "t", "--yes").stdout.endswith("its dead letters are in t.dlq\n")
    assert run("dead", "list", DEAD).stderr == ""


def test_the_policy_names_the_topic_of_dead_letters(client: Client, run: Run, wire: Wire) -> None:
    client.put_settings({"topic.t": '{"dead": {"topic": "failed"}}'})
    dead(wire, "a")
    assert run("dead", "list", "t").stderr.endswith("its dead letters are in failed\n")
    assert run("dead", "redrive", "t").stdout.endswith("its dead letters are in failed\n")


def test_delete_asks_for_the_name(client: Client, run: Run, wire: Wire) -> None:
    dead(wire, "timeout 1", "timeout 2", "other")
    client.enqueue(DEAD, b"by hand")
    assert run("dead", "delete", DEAD, status=1).stderr.endswith("give --yes\n")
    status, shown = in_terminal(client, "dead", "delete", DEAD, typed="t\n")
    assert status == 1 and "nothing was changed" in shown
    assert len(remaining(client, DEAD)) == 4
    status, shown = in_terminal(client, "dead", "delete", DEAD, "--reason-contains", "timeout", typed="t.dlq\n")
    assert status == 0 and "2 items deleted" in shown
    while (leased := wire.one(DEAD)).payload != b"other":
        assert leased.payload == b"by hand"
    done = run("dead", "delete", DEAD, "--yes")
    assert done.stdout == "no item to delete; 1 leased item stays\n"
    assert wire.nack(leased, wire.ns, release=True) == 0
    assert "1 item deleted" in run("dead", "delete", DEAD, "--yes").stdout
    assert remaining(client, DEAD) == [b"by hand"]
    assert "has no such dead letters" in run("dead", "delete", DEAD, "--yes").stdout


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("redrive", DEAD, "--fingerprint", "12"), "a fingerprint has 16 hexadecimal digits"),
        (("redrive", DEAD, "--to-topic", DEAD), "to_topic is the dead-letter topic itself"),
        (("redrive", DEAD, "--reason-contains", ""), "reason_contains is empty: it must be text of 1 to 1024 bytes"),
    ],
)
def test_wrong_options(run: Run, args: tuple[str, ...], why: str) -> None:
    assert why in run("dead", *args, status=1).stderr


def against(peer: Peer, *args: str, status: int = 0) -> Any:
    done = foqs("dead", "redrive", DEAD, *args, env={"FOQS_ADDRESS": peer.address})
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def answers(*found: tuple[Any, ...]) -> Any:
    return script("RedriveItems", *[idl.RedriveItemsResponse(*one) for one in found])


def test_the_command_goes_on_while_items_are_left() -> None:
    with Peer(answers((2, 2, 1, True, []), (3, 3, 1, True, []), (1, 1, 2, False, []))) as peer:
        assert against(peer).stdout == "6 items redriven from t.dlq; 2 leased items stay\n"
        assert len(peer.named("RedriveItems")) == 3
    with Peer(answers((2, 2, 0, True, []), (1, 3, 0, True, []))) as peer:
        assert against(peer, "--count", "5").stdout == "between 3 and 5 items redriven from t.dlq\n"
        assert [one.count for one in peer.named("RedriveItems")] == [5, 3]


def test_a_request_without_a_reply_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "RedriveItems", lambda peer, request: None, raising=False)
    found = idl.RedriveItemsResponse(2, 2, 0, True, [])
    with Peer(script("RedriveItems", found, Act.CLOSE_AFTER)) as peer:
        done = against(peer, status=1)
        assert "2 items redriven before it. It may have redriven items" in done.stderr
        assert len(peer.named("RedriveItems")) == 2


def test_the_command_names_shards_that_it_did_not_reach() -> None:
    with Peer(answers((0, 4, 0, False, [3, 7]))) as peer:
        done = against(peer, status=1)
        assert done.stdout == "between 0 and 4 items redriven from t.dlq\n"
        assert "shards not searched to their end: 3, 7" in done.stderr
    with Peer(answers((2, 2, 0, True, []))) as peer:  # a second call would take more of each group
        done = against(peer, "--per-fingerprint", "1", status=1)
        assert "the time of the call ended before" in done.stderr
        assert len(peer.named("RedriveItems")) == 1


@pytest.mark.parametrize("text", ["", "1", "+00000000000000f", "0x0000000000000f", "g" * 16, "1" * 17])
def test_a_text_that_is_no_fingerprint(text: str) -> None:
    with pytest.raises(Invalid):
        parse_fingerprint(text)


@pytest.mark.parametrize("number", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_a_fingerprint_is_read_as_it_is_shown(number: int) -> None:
    assert parse_fingerprint(shown_fingerprint(number)) == number


def test_a_cause_of_a_later_version_is_a_number() -> None:
    groups = [FailureGroup(cause, f"{1:016x}", 1, 0, 0, 1, "r") for cause in (9, FailureCause.LIMIT)]
    table = groups_table(groups, 0)
    assert list(table.columns[0].cells) == ["9", "limit"]


def test_work_is_failed_and_rejected_by_hand(client: Client, run: Run) -> None:
    client.enqueue("t", b"a")
    leased = run("dequeue", "t", "--wait-ms", "60000").stdout
    assert lines(run("nack", "--failed", "--reason", "busy", stdin=leased))[0]["ok"]
    (item,) = client.list_items("t")
    assert item.state == ItemState.DELAYED  # as the built-in retry rule says
    leased = run("dequeue", "t", "--wait-ms", "60000").stdout
    assert lines(run("nack", "--reject", "--reason", "no such product", stdin=leased))[0]["ok"]
    (group,) = lines(run("dead", "list", DEAD))
    assert (group["cause"], group["sample_reason"]) == ("rejected", "no such product")


def test_a_long_reason_is_shown_whole_in_80_columns(client: Client, wire: Wire) -> None:
    reason = "no route to the server of customer 'acme' since noon"
    dead(wire, reason)
    _, shown = in_terminal(client, "dead", "list", DEAD)
    assert max(map(len, shown.splitlines())) <= 80
    assert all(word in shown for word in reason.split())


def test_dead_letters_of_a_closed_topic_stay(client: Client, run: Run, wire: Wire) -> None:
    """Those of other topics return. The command names the topic, and the way out."""
    dead(wire, "a", "b")
    client.put_settings({"topic.u": '{"dead": {"topic": "t.dlq"}}'})
    wire.put("u", b"x")
    assert wire.nack(wire.one("u"), wire.ns, reject=True, reason="c") == 0
    client.put_settings({"topic.t": '{"closed": true}'})
    way_out = f"the topic t is closed to enqueues until `foqs topic open t --ns {client.namespace}`"
    counted = run("dead", "redrive", DEAD, "--dry-run", status=1)
    assert counted.stdout == f"1 item would be redriven from {DEAD}\n"
    redriven = run("dead", "redrive", DEAD, status=1)
    assert redriven.stdout == f"1 item redriven from {DEAD}\n"
    assert redriven.stderr == f"foqs: 2 dead letters stay: {way_out}\n"
    assert wire.one("u").payload == b"x"
    again = run("dead", "redrive", DEAD, status=1)
    assert again.stdout == ""
    assert again.stderr.startswith(f"foqs: no item was redriven: {way_out} (2 dead letters stay)")
    assert run("dead", "redrive", DEAD, "--to-topic", "v", "--count", "1").returncode == 0
    client.put_settings(remove=["topic.t"])
    assert run("dead", "redrive", DEAD).stdout == f"1 item redriven from {DEAD}\n"
