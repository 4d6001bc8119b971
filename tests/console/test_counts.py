"""The counts of the pages equal the rows of the shards' databases while nothing runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from sqlalchemy import create_engine, text

from foqs.client import Client, Item, ItemSpec, ItemState
from foqs.fairness.keys import unpack_throttles
from foqs.store.maintenance import create_schema
from tests.api.hosts import PATIENT, HostProcess
from tests.conftest import NewShardUrl
from tests.console.asgi import Answer, Site, words
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
STATES = ("ready", "delayed", "leased", "completed", "failed")
_ITEMS = """
SELECT l.ns, l.topic, l.fairness, l.throttles, i.id, COALESCE(d.state, 0), COALESCE(t.lease, 0), COALESCE(t.due, 0)
FROM item i JOIN lane l ON l.lane = i.lane LEFT JOIN timer t ON t.id = i.id LEFT JOIN done d ON d.id = i.id
"""
_FAILURES = "SELECT fingerprint, COUNT(*) FROM failure GROUP BY fingerprint"


class Row(NamedTuple):
    """An item in the database of a shard."""

    shard: int
    topic: str
    tenant: str
    keys: tuple[str, ...]
    id: int
    state: str


class Service:
    """A host, its databases by shard, and a console of it for the namespace shop."""

    def __init__(self, host: HostProcess, urls: dict[int, str]) -> None:
        self.address = "{}:{}".format(*host.address)
        self._engines = {shard: create_engine(url) for shard, url in urls.items()}
        self.client = Client(self.address, "shop", routing=False)
        self._site = Site(self.address)

    def get(self, path: str, **query: str) -> Answer:
        answer = self._site.get(f"{path}?{urlencode({'ns': 'shop', **query})}")
        assert answer.status == 200, answer.said
        return answer

    def follow(self, answer: Answer) -> Answer | None:
        """Return the next page of a list."""
        found = re.search(r'rel="next" href="([^"]*)"', answer.text)
        return None if found is None else self._site.get(unescape(found[1]))

    def ask(self, sql: str) -> list[Any]:
        """Return the rows of all shards, each behind the number of its shard."""
        found: list[Any] = []
        for shard, engine in self._engines.items():
            with engine.connect() as connection:
                found += [(shard, *row) for row in connection.execute(text(sql))]
        return found

    def rows(self) -> list[Row]:
        """Return the items of the namespace."""
        found = []
        for shard, ns, topic, fairness, throttles, item, ended, lease, due in self.ask(_ITEMS):
            state = "completed" if ended == ItemState.COMPLETED else "failed" if ended else "leased" if lease else ""
            state = state or ("delayed" if due else "ready")
            row = Row(shard, topic.decode(), fairness.decode(), unpack_throttles(bytes(throttles)), item, state)
            found += [row] if ns == b"shop" else []
        return found

    def close(self) -> None:
        self._site.close()
        self.client.close()
        for engine in self._engines.values():
            engine.dispose()


@pytest.fixture
def found(new_shard_url: NewShardUrl, tmp_path: Path) -> Iterator[Service]:
    urls = {shard: new_shard_url() for shard in (1, 2)}
    for shard, url in urls.items():
        create_schema(url, shard)
    config = tmp_path / "foqs.toml"
    shards = "".join(f'[[shards]]\nid = {shard}\nurl = "{url}"\n' for shard, url in urls.items())
    config.write_text(f"[server]\nport = 0\n{shards}")
    with HostProcess(tmp_path / "log", ["serve", "--config", config], PATIENT) as host:
        service = Service(host, urls)
        fill(service.client)
        with Client(service.address, "elsewhere", routing=False) as other:
            other.enqueue_many([ItemSpec("mail", b"x", fairness_key="acme")] * 5)
        yield service
        service.close()


def fill(client: Client) -> None:
    """Give topics items in all states, which stay so."""
    client.put_settings(
        {
            "topic.kept": json.dumps(
                {"keep": {"completed_ms": HOUR_MS, "failed_ms": HOUR_MS}, "max_attempts": 1, "dead": None}
            ),
            "topic.work": json.dumps({"max_attempts": 1, "dead": {"topic": "work.dlq"}}),
            "topic.routed": json.dumps({"hooks": {"on_enqueue": "route"}}),
            "topic.halted": json.dumps({"paused": True}),
            "script.route": "function on_enqueue(item)\nend\n",
            "throttle.gpu": json.dumps({"concurrency": 2}),
            **{f"schedule.{name}": json.dumps({"cron": "0 0 29 2 *", "topic": "later"}) for name in "abc"},
        }
    )
    tenants = ["acme"] * 20 + ["globex"] * 12 + [None] * 8
    client.enqueue_many([ItemSpec("mail", b"x", fairness_key=tenant) for tenant in tenants])
    client.enqueue_many([ItemSpec("mail", b"x", delay_ms=HOUR_MS * hours) for hours in range(1, 8)])
    take(client, "mail", 9, "host-1:1")
    client.enqueue_many([ItemSpec("kept", b"x")] * 11)
    for at, item in enumerate(take(client, "kept", 8, "host-1:2")):
        client.ack(item) if at < 5 else client.nack(item, failed=True, reason="no")
    client.enqueue_many([ItemSpec("work", b"x")] * 10)
    for at, item in enumerate(take(client, "work", 7, "host-1:2")):
        client.nack(item, failed=True, reason="SMTP 451" if at < 4 else "disk full")
    client.enqueue_many([ItemSpec("train", b"x", fairness_key=f"t{at % 3}", throttle_keys=["gpu"]) for at in range(9)])
    take(client, "train", 2, "host-2:1")
    client.enqueue_many([ItemSpec("routed", b"x")] * 4)
    client.enqueue_many([ItemSpec("halted", b"x")] * 6)


def take(client: Client, topic: str, count: int, worker: str) -> list[Item]:
    taken: list[Item] = []

    def more() -> bool:
        taken.extend(client.dequeue(topic, count=count - len(taken), worker=worker, lease_ms=HOUR_MS))
        return len(taken) == count

    wait_until(more, f"{count} items of {topic}")
    return taken


def table(answer: Answer, name: str) -> list[dict[str, str]]:
    """Return the rows of a table, by the heads of its columns."""
    body = answer.text.split(f'<div class="wide" id="{name}"')[1].split("</table>")[0]
    heads = [words(one) for one in re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", body, re.DOTALL)]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("<tbody>")[1].split("<tr")[1:]]
    return [dict(zip(heads, map(words, row), strict=True)) for row in rows]


def cards(answer: Answer) -> dict[str, int]:
    found = re.findall(r'<div class="card"><dt>(.*?)</dt><dd><b>([\d,]+)</b>', answer.text)
    return {name.lower(): number(value) for name, value in found}


def number(said: str) -> int:
    """Return the first number of a text."""
    found = re.search(r"\d[\d,]*", said)
    return int(found[0].replace(",", "")) if found else 0


def counts(rows: list[Row]) -> dict[str, int]:
    by_state = Counter(row.state for row in rows)
    return {state: by_state[state] for state in STATES}


@pytest.mark.process
@pytest.mark.parametrize(
    "shard_kind",
    ["sqlite", pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb])],
    indirect=True,
)
def test_counts_of_pages_equal_the_rows_of_the_shards(found: Service) -> None:
    # Leases are written a moment after their deliveries.
    wait_until(lambda: counts(found.rows())["leased"] == 11, lambda: counts(found.rows()))
    rows = found.rows()
    topics = sorted({row.topic for row in rows})
    assert topics == ["halted", "kept", "mail", "routed", "train", "work", "work.dlq"]
    of = {topic: [row for row in rows if row.topic == topic] for topic in topics}
    assert all(counts(rows).values()), "each state has items"

    overview = cards(found.get("/"))
    assert {state: overview[state] for state in STATES[:3]} == {state: counts(rows)[state] for state in STATES[:3]}

    listed = {row["Topic"].split()[0]: row for row in table(found.get("/topics"), "topics")}
    for topic in topics:
        wanted = counts(of[topic])
        waiting = {state: wanted[state] for state in STATES[:3]}
        assert {state: number(listed[topic][state.capitalize()]) for state in waiting} == waiting, topic
        page = found.get(f"/topics/{topic}")
        shown = cards(page)
        assert {state: shown[state] for state in waiting} == waiting, topic
        assert shown["kept"] == wanted["completed"] + wanted["failed"]
        assert f"{wanted['completed']} completed, {wanted['failed']} failed" in page.said
        for state in STATES:
            wanted_ids = {row.id for row in of[topic] if row.state == state}
            assert ids(found, topic=topic, state=state) == wanted_ids, (topic, state)

    tenants = table(found.get("/topics/mail"), "tenants")
    ready = Counter(row.tenant or "(none)" for row in of["mail"] if row.state == "ready")
    assert {one["Fairness key"]: number(one["Ready"]) for one in tenants if number(one["Ready"])} == ready
    for tenant in ("acme", "globex"):
        assert ids(found, topic="mail", tenant=tenant) == {row.id for row in of["mail"] if row.tenant == tenant}
    assert ids(found, topic="mail", keyless="1") == {row.id for row in of["mail"] if not row.tenant}

    (dead,) = [one for one in table(found.get("/dead"), "topics") if one["Topic"] == "work.dlq"]
    assert number(dead["Items"]) == len(of["work.dlq"]) == 7
    groups = table(found.get("/dead", topic="work.dlq"), "groups")
    failures = Counter[int]()
    for _, fingerprint, many in found.ask(_FAILURES):
        failures[fingerprint] += many
    assert sorted(number(one["Items"]) for one in groups) == sorted(failures.values()) == [3, 4]

    by_state = counts([row for row in rows if "gpu" in row.keys])

    def gpu() -> list[int]:
        # A flow that no request for items has met is not parked yet.
        assert found.client.dequeue("train", worker="host-2:1") == []
        (key,) = [one for one in table(found.get("/throttles"), "keys") if one["Key"] == "gpu"]
        return [number(key["Leases"].partition(" of ")[0]), number(key["Waiting"])]

    assert (by_state["leased"], by_state["ready"]) == (2, 7)
    wait_until(lambda: gpu() == [2, 7], gpu)  # the slots are reported every half second
    waiting = table(found.get("/topics/train"), "tenants")
    assert sum(number(one["Held back"]) for one in waiting) == by_state["ready"]

    held = {one["Worker"]: number(one["Held"]) for one in table(found.get("/consumers"), "consumers")}
    assert held == {"host-1:1": 9, "host-1:2": 0, "host-2:1": 2}
    assert sum(held.values()) == counts(rows)["leased"]

    assert [one["Name"] for one in table(found.get("/schedules"), "schedules")] == ["a", "b", "c"]
    (calls,) = table(found.get("/hooks"), "calls")
    assert (number(calls["Calls"]), number(calls["Failures"])) == (len(of["routed"]), 0)
    shards = {number(one["Shard"]): number(one["Items"]) for one in table(found.get("/hosts"), "shards")}
    assert shards == dict(found.ask("SELECT COUNT(*) FROM item WHERE id NOT IN (SELECT id FROM done)"))


def ids(found: Service, **query: str) -> set[int]:
    """Return the items of all pages of a search. Each is on one page."""
    listed: list[int] = []
    page: Answer | None = found.get("/items", **query)
    while page is not None:
        if 'id="items"' in page.text:
            listed += [int(one["Id"]) for one in table(page, "items")]
        page = found.follow(page)
    assert len(listed) == len({*listed})
    return {*listed}
