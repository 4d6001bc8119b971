"""`foqs change`, and what other commands do for one tenant, on a host of `foqs dev`."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from typing import Any

import pytest

from foqs.client import ChangedItems, Client, Conflict, Invalid, ItemFilter, ItemSpec, ItemState, NotFound
from tests.api.hosts import HostProcess, start
from tests.support.live import Run, client, host, in_terminal, lines, remaining, run
from tests.support.waiting import wait_until

__all__ = ["client", "host", "run"]


def states(client: Client, topic: str = "t") -> dict[bytes, tuple[str, int]]:
    return {item.payload: (item.state.name, item.priority) for item in client.list_items(topic)}  # type: ignore[union-attr]


def order(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while items := client.dequeue("t", count=1, wait_ms=500):
        found += [item.payload for item in items]
        client.ack_many(items)
    return found


def test_items_by_id(client: Client, run: Run) -> None:
    a, b, late = [client.enqueue("t", payload) for payload in (b"a", b"b", b"late")]
    assert client.change([late], delay_ms=600_000) == [None]
    assert states(client)[b"late"] == ("DELAYED", 0)
    run("change", str(b), str(late), "--priority=-5", "--now")
    assert states(client) == {b"a": ("READY", 0), b"b": ("READY", -5), b"late": ("READY", -5)}
    run("change", "-", "--delay-ms", "600000", stdin=f"{a}\n")
    assert states(client)[b"a"] == ("DELAYED", 0)
    assert order(client) == [b"b", b"late"]


def test_an_item_that_cannot_be_changed_has_its_line(client: Client, run: Run) -> None:
    good = client.enqueue("t", b"good")
    client.enqueue("u", b"held")
    (held,) = client.dequeue("u", wait_ms=10_000)
    done = run("change", str(held.id), str(good), "281474976999999", "--priority", "3", status=1)
    first, second = lines(done)
    assert (first["id"], first["error"]) == (str(held.id), "CONFLICT")
    assert "has leased the item until" in first["message"] and "foqs release u" in first["message"]
    assert (second["id"], second["error"]) == ("281474976999999", "NOT_FOUND")
    assert "2 of 3 items were not changed" in done.stderr
    assert states(client) == {b"good": ("READY", 3)}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["1"], "give --now, --delay-ms or --priority"),
        (["1", "--now", "--delay-ms", "5"], "--now and --delay-ms exclude each other"),
        (["--now"], "give either ids or --topic"),
        (["1", "--topic", "t", "--now"], "give either ids or --topic"),
        (["1", "--now", "--tenant", "a", "--dry-run"], "--dry-run, --tenant: only with --topic"),
        (["x", "--now"], "x"),
        (["--topic", "t", "--now", "--header", "a"], "--header a: this is not KEY=VALUE"),
    ],
)
def test_wrong_options(run: Run, args: list[str], said: str) -> None:
    assert said in run("change", *args, status=2).stderr


def filled(client: Client) -> None:
    for at in range(6):
        tenant = "acme" if at % 2 else None
        client.enqueue(
            "t", b"%d" % at, priority=at % 3, fairness_key=tenant, headers={"kind": "even"} if at % 2 == 0 else None
        )


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (["--tenant", "acme"], [b"1", b"3", b"5"]),
        (["--fairness-key", ""], [b"0", b"2", b"4"]),
        (["--header", "kind=even", "--priority-is", "0"], [b"0"]),
        (["--priority-is", "2"], [b"2", b"5"]),
        (["--older-than-ms", "3600000"], []),
        (["--state", "delayed"], []),
        (["--pace", "1000000"], [b"0", b"1", b"2", b"3", b"4", b"5"]),
    ],
)
def test_items_by_a_filter(client: Client, run: Run, options: list[str], changed: list[bytes]) -> None:
    filled(client)
    dry = run("change", "--topic", "t", *options, "--delay-ms", "600000", "--dry-run").stdout
    count = f"{len(changed)} item{'' if len(changed) == 1 else 's'}"
    assert (f": {count}" in dry and "would be changed" in dry) if changed else "has no such item" in dry
    assert all(state == "READY" for state, _ in states(client).values())
    done = run("change", "--topic", "t", *options, "--delay-ms", "600000", "--yes").stdout
    assert not changed or done.endswith(f"{count} of t changed\n")
    assert sorted(payload for payload, (state, _) in states(client).items() if state == "DELAYED") == changed


def test_the_name_of_the_topic_is_asked_for(client: Client, run: Run) -> None:
    filled(client)
    assert "give --yes" in run("change", "--topic", "t", "--priority", "9", status=1, stdin="t\n").stderr
    status, shown = in_terminal(client, "change", "--topic", "t", "--priority", "9", typed="u\n")
    assert status == 1 and "this is not t: nothing was changed" in " ".join(shown.split())
    status, shown = in_terminal(client, "change", "--topic", "t", "--tenant", "acme", "--priority", "9", typed="t\n")
    text = " ".join(shown.split())
    assert status == 0 and "3 items of tenant acme to change" in text and "3 items of t changed" in text, text
    assert "Type t to change 3 items: priority 9" in text


def test_sigterm_says_how_many_are_changed(client: Client) -> None:
    client.enqueue_many([ItemSpec("t", b"%d" % number) for number in range(50)])
    with tempfile.TemporaryFile("w+") as said, open("/dev/null") as nothing:
        args = ["change", "--topic", "t", "--priority=7", "--pace", "1", "--yes", "--ns", client.namespace]
        streams = nothing.fileno(), said.fileno(), said.fileno()
        command = start(args, *streams, {"FOQS_ADDRESS": client.address})
        wait_until(lambda: sum(priority == 7 for _, priority in states(client).values()) >= 2)
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == -signal.SIGTERM
        said.seek(0)
        lines = said.read().splitlines()
    assert re.fullmatch("foqs: interrupted: [0-9]+ items? of t changed; repeat the command for the rest", lines[-2])
    assert lines[-1] == "foqs: ended by SIGTERM"


def test_leased_items_are_skipped_and_counted(client: Client, run: Run) -> None:
    filled(client)
    client.dequeue("t", count=2, wait_ms=10_000)
    said = run("change", "--topic", "t", "--priority", "9", "--count", "3", "--yes").stdout.splitlines()
    assert said[0].endswith(": 3 items to change; 2 leased items skipped")
    assert said[1] == "3 items of t changed; 2 leased items skipped"


def test_a_call_for_the_rest_lists_the_rest(client: Client, run: Run) -> None:
    filled(client)
    run("change", "--topic", "t", "--priority", "9", "--count", "4", "--yes")
    said = run("change", "--topic", "t", "--priority", "9", "--yes").stdout.splitlines()
    assert said[0].endswith(": 2 items to change") and said[1] == "2 items of t changed"
    assert "has no such item" in run("change", "--topic", "t", "--priority", "9", "--yes").stdout
    assert client.change_all("t", priority=9, delay_ms=60_000).found == 6, "their times change"


def test_an_item_that_was_taken_meantime_is_skipped(client: Client) -> None:
    filled(client)
    taken: list[Any] = []

    def confirm(found: ChangedItems) -> bool:
        taken.extend(client.dequeue("t", count=1, wait_ms=10_000))
        (gone,) = [item.id for item in client.list_items("t", state=ItemState.READY)][:1]
        client.delete_items([gone])
        return found.found == 6

    progress: list[ChangedItems] = []
    done = client.change_all("t", priority=7, pace_per_second=20, confirm=confirm, on_progress=progress.append)
    assert (done.found, done.changed, done.taken, done.failed) == (6, 4, 2, 0)
    assert [one.changed + one.taken for one in progress] == [2, 4, 6]
    assert client.change_all("t", priority=8, confirm=lambda _: False).changed == 0


def test_the_errors_of_the_client(client: Client) -> None:
    item_id = client.enqueue("t", b"x", ttl_ms=60_000)
    (error,) = client.change([item_id], delay_ms=600_000)
    assert isinstance(error, Invalid) and "its TTL ends at" in error.message
    (error, second) = client.change([5, "x"], priority=1)
    assert isinstance(error, NotFound) and isinstance(second, Invalid)
    with pytest.raises(Invalid, match="give at least one of them"):
        client.change([item_id])
    with pytest.raises(Invalid, match="give one of the two"):
        client.change([item_id], delay_ms=1, deliver_after_ms=1_700_000_000_000)
    with pytest.raises(Invalid, match=r"ItemState\.READY, DELAYED or BEHIND"):
        client.change_all("t", filter=ItemFilter(state=ItemState.LEASED), priority=1)
    (leased,) = client.dequeue("t", wait_ms=10_000)
    (error,) = client.change([leased.id], priority=1)
    assert isinstance(error, Conflict)


# ------------------------------------------------------------------------------------------ one tenant


def test_the_items_of_a_tenant_are_listed_and_purged(client: Client, run: Run) -> None:
    filled(client)
    assert {item["fairness_key"] for item in lines(run("items", "t", "--tenant", "acme"))} == {"acme"}
    assert len(lines(run("items", "t", "--tenant", ""))) == 3
    status, shown = in_terminal(client, "items", "t", "--tenant", "zenith")
    assert status == 0 and "has no items of tenant zenith" in " ".join(shown.split())
    client.dequeue("t", count=1, wait_ms=10_000)  # of the tenant without a key, or of acme
    said = run("purge", "t", "--tenant", "acme", "--yes", "--leased").stdout
    assert "ready" in said and "of tenant acme" in said and "3 items deleted" in said
    assert {item.fairness_key for item in client.list_items("t")} == {""}
    assert len(list(client.list_items("t"))) == 3
    assert "has no item of tenant acme to delete" in run("purge", "t", "--tenant", "acme", "--yes").stdout


def test_a_tenant_is_paused_and_resumed(client: Client, run: Run) -> None:
    filled(client)
    said = run("topic", "pause", "t", "--tenant", "acme").stdout
    assert said.startswith("tenant acme of t is paused\n") and "version" in said
    assert run("topic", "pause", "t", "--tenant", "acme").stdout.startswith("tenant acme of t is already paused\n")
    assert json.loads(client.settings("topic.t").entries["topic.t"]) == {"paused_tenants": ["acme"]}
    assert sorted(order(client)) == [b"0", b"2", b"4"]
    assert client.dequeue("t", wait_ms=0).reason == "paused_tenants"
    assert "all tenants of topic t with items are paused" in run("dequeue", "t").stderr
    (row,) = [one for one in lines(run("topic", "tenants", "t")) if one["fairness_key"]]
    assert (row["fairness_key"], row["paused"], row["parked"]) == ("acme", True, 3)
    assert "paused" in in_terminal(client, "topic", "tenants", "t")[1]
    (item,) = list(client.list_items("t"))[:1]
    (found,) = [one for one in json.loads(run("explain", str(item.id)).stdout)["reasons"] if one["code"] == "paused"]
    assert (found["key"], found["tenant"]) == ("topic.t", "acme")
    assert found["by"] == "foqs at 127.0.0.1", "the author of the pause"
    assert f"pauses tenant 'acme' of the topic, paused by {found['by']}" in found["text"]
    assert run("topic", "resume", "t").stdout.splitlines()[:2] == [
        "t is not paused",
        "1 tenant of it is still paused, such as acme: foqs topic resume with --tenant",
    ]
    run("topic", "pause", "t", "--tenant", "", "--tenant", "b")
    said = run("topic", "resume", "t", "--tenant", "acme", "--tenant", "").stdout
    assert said.startswith("tenant acme of t is resumed\nthe tenant without a fairness key of t is resumed\n")
    assert run("topic", "resume", "t", "--tenant", "x").stdout.startswith("tenant x of t is not paused\n")
    assert sorted(order(client)) == [b"1", b"3", b"5"]
    run("topic", "resume", "t", "--tenant", "b")
    assert client.settings("topic.t").entries == {}
    assert remaining(client, "t") == []


def test_a_list_of_a_wider_entry_counts(client: Client, run: Run) -> None:
    """The topic's own entry replaces it, so that it has all of its tenants."""
    client.put_settings({"topic.*": '{"paused_tenants": ["a", "b"]}'})
    client.enqueue("t", b"x", fairness_key="a")
    run("topic", "pause", "t", "--tenant", "c")
    assert json.loads(client.settings("topic.t").entries["topic.t"]) == {"paused_tenants": ["a", "b", "c"]}
    run("topic", "resume", "t", "--tenant", "a")
    assert json.loads(client.settings("topic.t").entries["topic.t"]) == {"paused_tenants": ["b", "c"]}
    run("topic", "resume", "t", "--tenant", "c")
    assert json.loads(client.settings("topic.t").entries["topic.t"]) == {"paused_tenants": ["b"]}
    client.put_settings(remove=["topic.*", "topic.t"])


def test_the_audit_log_has_changes(host: HostProcess, client: Client, run: Run) -> None:
    item_id = client.enqueue("t", b"x")
    run("change", str(item_id), "--priority", "3")
    written = [line for line in host.log.read_text().splitlines() if "audit.admin" in line and "ChangeItems" in line]
    assert written and str(item_id) in written[-1] and "priority" in written[-1]
