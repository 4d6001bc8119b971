"""Schedules through the client and the commands, against a real host that is killed and started again."""

import json
from typing import Any

import pytest

from foqs.client import Client, Invalid, NotFound
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


def take(client: Client, count: int) -> list[int]:
    """The times of the next items, which are acked."""
    times: list[int] = []
    while len(times) < count:
        items = client.dequeue("polls", 100, wait_ms=PATIENT_MS)
        client.ack_many(items)
        times += [int(item.headers["schedule_at_ms"]) for item in items]
    return times


def said(server: Server, *args: str, code: int = 0) -> str:
    run = foqs(server, "schedule", *args)
    assert run.returncode == code, run
    return (run.stderr if code else run.stdout).decode()


def test_each_time_fires_once_through_kills(server: Server, client: Client) -> None:
    value = {"cron": "@every 1s", "topic": "polls", "catch_up": "all", "payload": "x", "headers": {"a": "b"}}
    client.put_settings({"schedule.poll": json.dumps(value)})
    times = take(client, 2)
    for _ in range(3):
        server.kill()
        server.start()
        times += take(client, 2)
    assert sorted(times) == list(range(min(times), max(times) + 1, 1_000))
    (row,) = client.schedules().schedules
    assert (row.name, json.loads(row.setting), row.missed, row.coordinator) == ("poll", value, 0, server.address)
    assert len(row.next_at_ms) == 5


@on_each_host
def test_a_schedule_is_run_by_hand(server: Server, client: Client) -> None:
    value = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "reports", "payload_base64": "AAE="}
    client.put_settings({"schedule.nightly": json.dumps(value)})
    ids = [client.run_schedule("nightly", dedup_key="today") for _ in range(2)]
    assert ids[0] == ids[1]
    assert json.loads(said(server, "run", "nightly"))["id"] != str(ids[0])
    items = client.dequeue("reports", 10, wait_ms=PATIENT_MS)
    assert {(item.payload, item.headers["schedule"]) for item in items} == {(b"\0\1", "nightly")}
    with pytest.raises(NotFound, match="no schedule 'weekly'"):
        client.run_schedule("weekly")


@on_each_host
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"cron": "* * *"}, "topic"),
        ({"cron": "61 * * * *", "topic": "t"}, "the minute is not valid"),
        ({"cron": "* * * *", "topic": "t"}, "it has five fields"),
        ({"cron": "* * * * *", "topic": "t", "timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"cron": "@every 0s", "topic": "t"}, "@every with a whole number"),
        ({"cron": "* * * * *", "topic": ""}, "topic"),
        ({"cron": "0 0 */30 2 1#5", "topic": "t"}, "it never fires"),
        ({"cron": "* * * * *", "topic": "t", "payload": "\ud800"}, "payload: it is not UTF-8"),
        ({"cron": "* * * * *", "topic": "t", "headers": {"a": "\ud800"}}, "it is not UTF-8"),
        ({"cron": "* * * * *", "topic": "t", "headers": {"schedule": "x"}}, "each item has its own header schedule"),
        ({"cron": "* * * * *", "topic": "t", "rules": {"max_attempts": -1}}, "max_attempts"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_schedule_is_refused(client: Client, value: dict[str, Any], error: str) -> None:
    with pytest.raises(Invalid, match=error):
        client.put_settings({"schedule.poll": json.dumps(value)})
    assert not client.settings().entries


@on_each_host
def test_the_commands(server: Server, client: Client) -> None:
    assert said(server, "set", "poll", "--cron", "@every 1s", code=1) == (
        "foqs: there is no schedule poll yet; a new one needs --cron and --topic\n"
    )
    assert "the minute is not valid" in said(server, "set", "poll", "--cron", "99 * * * *", "--topic", "t", code=1)
    said(
        server, "set", "poll", "--cron", "@every 1s", "--topic", "polls", "--header", "a=b", "--rules", '{"keep_ms": 5}'
    )
    take(client, 1)
    row = json.loads(said(server, "show", "poll"))
    assert row["setting"] == {
        "cron": "@every 1s", "topic": "polls", "headers": {"a": "b"}, "rules": {"keep_ms": 5},
    }  # fmt: skip
    assert said(server, "pause", "poll").startswith("schedule poll is paused")
    assert [json.loads(line)["paused"] for line in said(server, "list").splitlines()] == [True]
    assert said(server, "resume", "poll").startswith("schedule poll is resumed")
    take(client, 1)
    assert said(server, "remove", "poll").startswith("schedule poll is removed")
    assert said(server, "list") == ""
    assert said(server, "list", "pol") == ""
    for command in ("show", "remove", "pause", "resume", "run"):
        assert "no schedule" in said(server, command, "poll", code=1)
    assert said(server, "set", "poll", code=2).startswith("foqs: nothing to set")


@on_each_host
def test_a_time_waits_for_the_item_of_the_last_one(server: Server, client: Client) -> None:
    value = {"cron": "@every 1s", "topic": "polls", "overlap": "skip"}
    client.put_settings({"schedule.poll": json.dumps(value)})
    (item,) = client.dequeue("polls", wait_ms=PATIENT_MS)
    wait_until(lambda: client.schedules().schedules[0].missed >= 2)
    assert [one.id for one in client.list_items("polls")] == [item.id]
    client.ack(item)
    (after,) = client.dequeue("polls", wait_ms=PATIENT_MS)
    assert after.id != item.id
