"""Commands that look at items and change them, on a host of `foqs dev`."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import Client, Delivery, ItemSpec, ItemState
from tests.support.live import Run, client, host, in_terminal, lines, remaining, run

__all__ = ["client", "host", "run"]  # fixtures
HOUR_MS = 3_600_000


def three_states(client: Client, topic: str) -> dict[str, int]:
    """Store an item in each state. Return the ids by state."""
    leased = client.enqueue(topic, b"leased", priority=-1)
    (item,) = client.dequeue(topic, lease_ms=HOUR_MS, wait_ms=60_000)
    assert item.id == leased
    ready = client.enqueue(topic, b"ready")
    return {"ready": ready, "delayed": client.enqueue(topic, b"delayed", delay_ms=HOUR_MS), "leased": leased}


# ------------------------------------------------------------------------------------------------- looking


def test_items_of_a_topic_by_state(client: Client, run: Run) -> None:
    ids = three_states(client, "t")
    assert {line["state"].lower(): int(line["id"]) for line in lines(run("items", "t"))} == ids
    for state, item_id in ids.items():
        (line,) = lines(run("items", "t", "--state", state))
        assert (line["id"], line["payload"]) == (str(item_id), state)
    assert len(lines(run("items", "t", "--limit", 2))) == 2
    assert lines(run("items", "other")) == []
    assert "--state" in run("items", "t", "--state", "gone", status=2).stderr


def test_a_terminal_gets_a_table(client: Client) -> None:
    ids = three_states(client, "t")
    status, shown = in_terminal(client, "items", "t")
    header, *rows = shown.splitlines()
    assert (status, header.split()) == (0, ["id", "state", "next", "priority", "attempt", "age", "payload"])
    assert {row.split()[1]: int(row.split()[0]) for row in rows} == ids
    assert all(len(row) <= 80 for row in rows)
    assert "these are the first 2 items" in in_terminal(client, "items", "t", "--limit", "2")[1]
    assert "the first" not in in_terminal(client, "items", "t", "--limit", "3")[1]
    assert len(in_terminal(client, "items", "t", "--json")[1].splitlines()) == 3
    client.enqueue("u", b"x")
    _, shown = in_terminal(client, "items", "u", "--state", "leased")
    assert shown == f"topic u in namespace {client.namespace} has no leased items\n"
    _, shown = in_terminal(client, "items", "empty")
    assert shown.startswith(f"foqs: no topic empty is known in namespace {client.namespace}: ")
    assert len(shown.splitlines()) == 1


def test_all_topics_are_listed_with_counts(client: Client, run: Run) -> None:
    three_states(client, "t")
    client.enqueue("later", b"x", delay_ms=HOUR_MS)
    assert [(line["topic"], line["ready"]) for line in lines(run("topics"))] == [("t", 1)]
    found = lines(run("topics", "--all"))
    assert [(line["topic"], line["ready"], line["delayed"], line["leased"]) for line in found] == [
        ("later", 0, 1, 0),
        ("t", 1, 1, 1),
    ]
    header, first, _ = in_terminal(client, "topics", "--all")[1].splitlines()
    assert header.split()[1:4] == ["ready", "delayed", "leased"]
    assert first.split()[:5] == ["later", "0", "1", "0", "-"]
    empty = Client(client.address, f"{client.namespace}-empty")
    assert "try --all" in in_terminal(empty, "topics")[1]
    assert in_terminal(empty, "topics", "--all")[1].endswith(" has items\n")
    empty.close()


# ----------------------------------------------------------------------------------------------- enqueueing


def test_one_item_is_enqueued_from_the_arguments(client: Client, run: Run) -> None:
    (line,) = lines(run("enqueue", "t", "hé llo", "--priority", -3))
    item = client.get_item(line["id"])
    assert (item.topic, item.payload, item.priority) == ("t", "hé llo".encode(), -3)
    (late,) = lines(run("enqueue", "t", "", "--delay-ms", HOUR_MS))
    assert client.get_item(late["id"]).state == ItemState.DELAYED


def test_a_command_in_a_terminal_asks_for_lines(client: Client) -> None:
    status, shown = in_terminal(client, "enqueue", "t", "--raw", typed="a\nb\n\x04")
    assert (status, remaining(client, "t")) == (0, [b"a", b"b"])
    assert "foqs: type payloads, one in each line; Ctrl-D ends them" in shown
    ids = "".join(f"{item.id}\n" for item in client.list_items("t"))
    status, shown = in_terminal(client, "delete", "-", typed=f"{ids}\x04")
    assert (status, remaining(client, "t")) == (0, [])
    assert "foqs: type ids" in shown
    assert "foqs: type leases as JSON" in in_terminal(client, "ack", typed="\x04")[1]


@pytest.mark.parametrize("how", [(), ("--raw",)])
def test_an_empty_stdin_stores_nothing(client: Client, run: Run, how: tuple[str, ...]) -> None:
    run("enqueue", "t", *how)
    assert remaining(client, "t") == []


def test_items_get_the_keys_of_the_command(client: Client, run: Run) -> None:
    keys = ("--fairness-key", "acme", "--throttle-key", "db", "--throttle-key", "api:acme", "--weight", 3)
    stdin = '{"payload": "own", "fairness_key": "zenith", "throttle_keys": ["a"], "weight": 2}\n{"payload": "b"}\n'
    run("enqueue", "t", "a", *keys)
    run("enqueue", "t", *keys, stdin=stdin)
    run("enqueue", "t", "--raw", *keys, stdin="raw")
    found = {item.payload: (item.fairness_key, item.throttle_keys) for item in client.list_items("t")}
    given = ("acme", ("api:acme", "db"))
    assert found == {b"a": given, b"own": ("zenith", ("a",)), b"b": given, b"raw": given}
    shown = {line["payload"]: line for line in lines(run("items", "t", "--json"))}
    assert (shown["own"]["fairness_key"], shown["own"]["throttle_keys"]) == ("zenith", ["a"])
    shown_rows = in_terminal(client, "items", "t")[1]
    assert "fairness" in shown_rows and "zenith" in shown_rows
    leased = run("dequeue", "t", "--count", 4)
    assert {line["payload"]: line["fairness_key"] for line in lines(leased)} == {
        payload.decode(): keys[0] for payload, keys in found.items()
    }
    run("enqueue", "u", "--copy", stdin=leased.stdout)
    copies = {item.payload: (item.fairness_key, item.throttle_keys) for item in client.list_items("u")}
    assert copies == found


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (("--weight", 0), 2, "--weight"),
        (("--weight", 1_001), 2, "--weight"),
        (("--fairness-key", "x" * 256), 1, "fairness_key: a name has 1 to 255 bytes, not 256"),
        (("--throttle-key", "a*"), 1, "throttle_keys: a throttle key does not end in *"),
        (("--throttle-key", "a", "--throttle-key", "a"), 1, "throttle_keys: the key 'a' is listed more than once"),
        (tuple(f"--throttle-key={n}" for n in range(9)), 1, "throttle_keys: there are 9 keys, more than 8"),
    ],
)
def test_wrong_keys_and_weights(run: Run, args: tuple[str, ...], status: int, why: str) -> None:
    assert why in run("enqueue", "t", "a", *args, status=status).stderr


@pytest.mark.parametrize(
    "args",
    [["enqueue"], ["enqueue", "t", "x", "--raw"], ["enqueue", "t", "x", "--copy"], ["enqueue", "--raw", "--copy"]],
)
def test_contradictory_sources_are_refused(run: Run, args: list[str]) -> None:
    assert run(*args, status=2).stderr.startswith("foqs: ")


def test_leased_items_are_copied(client: Client, run: Run) -> None:
    fields: dict[str, Any] = {
        "metadata": b"m",
        "headers": {"a": "b"},
        "priority": -4,
        "delivery": Delivery.AT_MOST_ONCE,
    }
    source = client.enqueue("t", b"\xff", ttl_ms=HOUR_MS, **fields)
    written = run("dequeue", "t", "--wait-ms", 60_000, "--lease-ms", HOUR_MS)
    own, named = (lines(run("enqueue", *topic, "--copy", stdin=written.stdout))[0] for topic in ([], ["u"]))
    original = client.get_item(source)
    assert original.state == ItemState.LEASED
    for line, topic in ((own, "t"), (named, "u")):
        copy = client.get_item(line["id"])
        assert (copy.topic, copy.payload, copy.attempt, copy.state) == (topic, b"\xff", 0, ItemState.READY)
        assert {name: getattr(copy, name) for name in fields} == fields
        assert original.expires_at_ms is not None and copy.expires_at_ms is not None
        assert abs(copy.expires_at_ms - original.expires_at_ms) < 60_000


def test_listed_items_are_copied_with_their_delay(client: Client, run: Run) -> None:
    three_states(client, "t")
    assert len(lines(run("enqueue", "u", "--copy", stdin=run("items", "t", "--json").stdout))) == 3
    copies = {item.payload: item for item in client.list_items("u")}
    assert copies.keys() == {b"ready", b"delayed", b"leased"}
    assert [name for name, item in copies.items() if item.state == ItemState.DELAYED] == [b"delayed"]
    done = run("enqueue", "--copy", stdin='{"payload": "x"}\n', status=1)
    assert "line 1: no item that foqs wrote" in lines(done)[0]["message"]


# ------------------------------------------------------------------------------------------------- deleting


def test_items_are_deleted_by_id(client: Client, run: Run) -> None:
    ids = three_states(client, "t")
    done = run("delete", ids["ready"], hex(ids["leased"]))
    assert (done.stdout, done.stderr) == ("", "")
    assert remaining(client, "t") == [b"delayed"]
    done = run("delete", ids["ready"], ids["delayed"], ids["delayed"], status=1)
    assert [(line["id"], line["error"]) for line in lines(done)] == [(str(ids["ready"]), "NOT_FOUND")]
    assert done.stderr == "foqs: 1 of 2 items was not deleted\n"
    assert "'x'" in run("delete", "x", status=2).stderr
    assert "give it alone" in run("delete", "-", ids["ready"], status=2).stderr


def test_ids_to_delete_come_from_stdin(client: Client, run: Run) -> None:
    ids = three_states(client, "t")
    client.enqueue("t", b"stays")
    text = f"{ids['ready']}\n\n{hex(ids['leased'])}\n" + run("items", "t", "--state", "delayed").stdout
    run("delete", "-", stdin=text)
    assert remaining(client, "t") == [b"stays"]


def test_a_wrong_line_of_ids_fails_alone(client: Client, run: Run) -> None:
    first, second = client.enqueue("t", b"a"), client.enqueue("t", b"b")
    wrong = ["x", "{", '{"topic": "t"}', "[1]", '{"id": true}', str(1 << 64)]
    done = run("delete", "-", stdin="\n".join([str(first), *wrong, "5", str(first), str(second)]), status=1)
    said = [(line.get("id"), line["error"], line["message"].partition(":")[0]) for line in lines(done)]
    assert said == [(None, "INVALID", f"line {at}") for at in range(2, 8)] + [("5", "NOT_FOUND", "line 8")]
    assert done.stderr == "foqs: 7 of 10 items were not deleted\n"
    assert remaining(client, "t") == []


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ([], [b"leased"]),
        (["--leased"], []),
        (["--state", "ready"], [b"delayed", b"leased"]),
        (["--state", "delayed"], [b"leased", b"ready"]),
        (["--state", "leased"], [b"delayed", b"ready"]),
    ],
)
def test_a_purge_deletes_the_wanted_states(client: Client, run: Run, options: list[str], stays: list[bytes]) -> None:
    three_states(client, "t")
    client.enqueue("other", b"x")
    done = run("purge", "t", "--yes", *options)
    deleted = 3 - len(stays)
    assert done.stdout.splitlines()[-1] == f"{deleted} item{'s' * (deleted > 1)} deleted"
    assert ("1 leased item stays" in done.stdout) == (options == [])
    assert remaining(client, "t") == stays
    assert remaining(client, "other") == [b"x"]


def test_a_purge_needs_the_name_of_the_topic(client: Client, run: Run) -> None:
    client.enqueue_many([ItemSpec("t", b"x")] * 1_200)
    assert "give --yes" in run("purge", "t", status=1, stdin="t\n").stderr
    status, shown = in_terminal(client, "purge", "t", typed="u\n")
    assert (status, len(remaining(client, "t"))) == (1, 1_200)
    assert "1,200 ready" in shown and "Type t to delete 1,200 items" in shown and "nothing was changed" in shown
    status, shown = in_terminal(client, "purge", "t", typed="t\n")
    assert (status, remaining(client, "t")) == (0, [])
    assert "1,200 items deleted" in shown
    assert "has no item to delete" in run("purge", "t", "--yes").stdout
    assert run("purge", "t", "--state", "ready", "--leased", status=2).stderr.startswith("foqs: --leased")
