"""Searches of items with the client and `foqs items`, on a host of `foqs dev`."""

from __future__ import annotations

from typing import Any

from foqs.client import Client, Item, ItemFilter, ItemSpec, ItemState
from tests.support.live import Run, client, host, in_terminal, lines, run

__all__ = ["client", "host", "run"]


def filled(client: Client) -> None:
    """2,000 items, one of them with a kind of its own, and one that has failed and waits for long."""
    client.put_settings({"topic.failing": '{"retry": {"kind": "constant", "first_ms": 600000}}'})
    specs = [ItemSpec("t", b"%d" % at, priority=at % 3, headers={"kind": "mail"}) for at in range(1_998)]
    client.enqueue_many([*specs, ItemSpec("t", b"rare", priority=5, headers={"kind": "export", "who": "a=b"})])
    client.enqueue("failing", b"bad")
    (item,) = client.dequeue("failing", wait_ms=10_000)
    client.nack(item, failed=True, reason="SMTP 451 from host 7")


def test_pages_of_a_search(client: Client) -> None:
    filled(client)
    first = client.search_items("t", filter=ItemFilter(headers={"kind": "mail"}), page_items=10)
    assert (len(first.items), first.cursor is None) == (10, False)
    wanted = ItemFilter(headers={"kind": "export"})
    found: list[Item] = []
    looked_at, cursor = 0, None
    while True:
        page = client.search_items("t", filter=wanted, cursor=cursor)
        found += page.items
        looked_at += page.looked_at
        if (cursor := page.cursor) is None:
            break
    assert ([item.payload for item in found], looked_at) == ([b"rare"], 1_999)
    assert [item.payload for item in client.list_items("t", filter=wanted)] == [b"rare"]
    assert [item.payload for item in client.list_items("t", filter=ItemFilter(min_priority=3))] == [b"rare"]
    assert len(list(client.list_items("t", state=ItemState.READY, filter=ItemFilter(priority=2)))) == 666


def shown(done: Any) -> list[str]:
    return [item["payload"] for item in lines(done)]


def test_filters_of_the_command(client: Client, run: Run) -> None:
    filled(client)
    assert shown(run("items", "t", "--header", "kind=export", "--header", "who=a=b")) == ["rare"]
    assert shown(run("items", "t", "--priority-is", "5")) == ["rare"]
    assert shown(run("items", "t", "--min-priority", "4", "--max-priority", "9", "--newer-than-ms", "600000")) == [
        "rare"
    ]
    assert len(shown(run("items", "t", "--max-priority", "1", "--older-than-ms", "0", "--limit", "5"))) == 5
    assert shown(run("items", "failing", "--reason-contains", "SMTP 451", "--state", "delayed")) == ["bad"]
    assert "this is not KEY=VALUE" in run("items", "t", "--header", "kind", status=2).stderr
    done = run("change", "--topic", "t", "--reason-contains", "SMTP", "--now", "--yes")
    assert "has no such item to change" in done.stdout


def test_a_search_without_a_match_says_how_far_it_went(client: Client, run: Run) -> None:
    filled(client)
    done = run("items", "t", "--header", "kind=other")
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", "foqs: no such item in t; 1,999 items looked at")
    status, said = in_terminal(client, "items", "t", "--older-than-ms", "600000")
    assert (status, said.split()[-10:]) == (
        0,
        ["foqs:", "no", "such", "item", "in", "t;", "1,999", "items", "looked", "at"],
    )
    done = run("items", "none", "--header", "kind=other")
    assert "looked at" not in done.stderr and "none" in done.stderr
