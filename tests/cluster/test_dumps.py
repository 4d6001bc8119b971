"""`foqs shards backup` under load and `foqs shards restore`, with a host: the items, keys and results after it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from foqs.client import Client, DedupUntil, ItemSpec
from foqs.errors import NotFound
from foqs.store.dump import manifest_path
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess, foqs
from tests.conftest import NewShardUrl, NewTools
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

BIG = bytes(range(256)) * 400
NAMESPACE, KEY = "shop-\u00fc", "schl\u00fcssel-\U0001f511"
Said = subprocess.CompletedProcess[str]


class Journal:
    """What a client knows: the payload of each id that it got, the ids whose acks it sent, and those answered OK."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.sent: set[int] = set()
        self.acked: set[int] = set()


class Rig:
    """A single host with one shard, and its foqs.toml."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.config, self.dumps = folder, folder / "foqs.toml", folder / "dumps"
        self.point_to(url)
        self._starts = 0

    def point_to(self, url: str) -> None:
        self.config.write_text(
            f'[server]\nport = 0\n[admin]\nport = 0\n[store]\nstate_dir = "{self.folder / "state"}"\n'
            f'[[shards]]\nid = 1\nurl = "{url}"\n'
        )

    @contextmanager
    def serving(self) -> Iterator[tuple[HostProcess, Client]]:
        self._starts += 1
        with HostProcess(self.folder / f"log-{self._starts}", ["serve", "--config", self.config]) as host:
            address, port = host.address
            with Client(f"{address}:{port}", NAMESPACE) as client:
                yield host, client
            assert host.stop() == 0

    def run(self, *words: str | Path) -> Said:
        return foqs("shards", *words, "--config", self.config, patience_s=120)

    def backup(self) -> tuple[Path, Said]:
        ran = self.run("backup", "--all", "--to", self.dumps)
        assert ran.returncode == 0, ran.stderr
        found = re.search(r"shard 1: (\S+) \(", ran.stdout)
        assert found is not None
        return Path(found[1]), ran

    def restore(self, dump: Path, *options: str) -> Said:
        ran = self.run("restore", dump, *options)
        assert ran.returncode == 0, ran.stderr
        return ran


@pytest.fixture
def rig(shard_kind: str, new_shard_url: NewShardUrl, new_tools: NewTools, tmp_path: Path) -> Rig:
    new_tools(shard_kind)
    url = new_shard_url()
    create_schema(url, 1)
    return Rig(tmp_path, url)


@contextmanager
def load(client: Client, journal: Journal) -> Iterator[Callable[[], None]]:
    """Enqueue, dequeue and ack until the block ends. Yields a function that waits for more acks."""
    over = Event()

    def work() -> None:
        number = 0
        while not over.is_set():
            payloads = [b"%d" % (number + n) + BIG[: 64 * n] for n in range(12)]
            number += len(payloads)
            ids = client.enqueue_many([ItemSpec("load", payload) for payload in payloads])
            assert all(isinstance(one, int) for one in ids)
            journal.stored.update(zip(ids, payloads, strict=True))  # type: ignore[arg-type]
            items = client.dequeue("load", 10, lease_ms=300_000)
            journal.sent.update(item.id for item in items)
            outcomes = client.ack_many(items)
            journal.acked.update(item.id for item, one in zip(items, outcomes, strict=True) if one is None)

    def more() -> None:
        before = len(journal.acked)
        wait_until(lambda: len(journal.acked) >= before + 60 or working.done())

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            more()
            yield more
        finally:
            over.set()
        working.result()


def drained(client: Client, topic: str) -> dict[int, bytes]:
    """Deliver and ack all items of a topic."""
    got: dict[int, bytes] = {}
    while items := client.dequeue(topic, 100, wait_ms=1_000, lease_ms=300_000):
        assert not got.keys() & {item.id for item in items}
        got.update({item.id: item.payload for item in items})
        client.ack_many(items)
    return got


@pytest.mark.parametrize("place", ["over the old one", "elsewhere"])
def test_a_shard_comes_back_as_of_the_dump(rig: Rig, place: str, new_shard_url: NewShardUrl) -> None:
    journal = Journal()
    with rig.serving() as (_, client):
        client.put_settings(
            {"topic.kept": '{"keep": {"completed_ms": 3600000}}', "topic.dies": '{"dead": {"topic": "grave"}}'}
        )
        big = client.enqueue("big", BIG, dedup_key=KEY)
        unique = client.enqueue("unique", b"u", dedup_key="unique", dedup_until=DedupUntil.DONE)
        leased_id = client.enqueue("leased", b"l")
        (leased,) = client.dequeue("leased", 1, wait_ms=20_000, lease_ms=3_600_000)
        # A durable extension is committed before its answer; a lease alone up to 200 ms after it.
        client.extend(leased, 3_600_000, checkpoint=b"half", durable=True)
        kept = client.enqueue("kept", b"k")
        (one,) = client.dequeue("kept", 1, wait_ms=20_000, lease_ms=60_000)
        client.ack(one, result=b"result")
        dead = client.enqueue("dies", b"d")
        (one,) = client.dequeue("dies", 1, wait_ms=20_000, lease_ms=60_000)
        client.nack(one, reject=True, reason="bad")
        later = client.enqueue("later", b"x", delay_ms=3_000_000)
        with load(client, journal) as more:
            before, acked_before = dict(journal.stored), set(journal.acked)
            dump, _ = rig.backup()
            sent_by_then = set(journal.sent)
            more()
        # After the dump.
        assert client.ack(leased) is None
        (one,) = client.dequeue("big", 1, wait_ms=20_000, lease_ms=60_000)
        client.ack(one)
        (one,) = client.dequeue("unique", 1, wait_ms=20_000, lease_ms=60_000)
        client.ack(one)
        forgotten = client.enqueue("big", b"y", dedup_key="new")
        kept_later = client.enqueue("kept", b"k")
        (one,) = client.dequeue("kept", 1, wait_ms=20_000, lease_ms=60_000)
        client.ack(one, result=b"gone")
    given = {*journal.stored, big, unique, leased_id, kept, dead, later, forgotten, kept_later}
    if place == "elsewhere":
        rig.point_to(new_shard_url())
        ran = rig.restore(dump)
        assert " is empty" in ran.stdout
    else:
        refused = rig.run("restore", dump)
        assert refused.returncode == 1
        assert "--replace replaces its shard" in refused.stderr
        unasked = rig.run("restore", dump, "--replace")
        assert "no terminal is there to confirm it: give --yes" in unasked.stderr
        assert "nothing was changed (--dry-run)" in rig.restore(dump, "--replace", "--dry-run").stdout
        ran = rig.restore(dump, "--replace", "--yes")
    assert "the dump is loaded. Next: start the host" in ran.stdout
    assert '"what": "shards.restore"' in ran.stderr or "what=shards.restore" in ran.stderr
    with rig.serving() as (host, client):
        assert "shard.restored" in host.said()
        got = drained(client, "load")
        assert before.keys() - sent_by_then <= got.keys(), "each item that was stored before the dump"
        assert not got.keys() & acked_before, "no item that was acked before the dump"
        assert got.keys() <= journal.stored.keys()
        assert all(journal.stored[one] == payload for one, payload in got.items())
        # Acked after the dump: delivered again. Its lease was ended, and the attempt counts.
        (again,) = client.dequeue("leased", 1, wait_ms=20_000, lease_ms=60_000)
        assert (again.id, again.attempt) == (leased_id, 2)
        assert drained(client, "big") == {big: BIG}
        # Keys of the dump are known, later ones are not.
        assert client.enqueue("big", BIG, dedup_key=KEY) == big
        assert client.enqueue("unique", b"u", dedup_key="unique", dedup_until=DedupUntil.DONE) == unique
        fresh = client.enqueue("big", b"y", dedup_key="new")
        more_ids = client.enqueue_many([ItemSpec("load", b"z")] * 50)
        assert not {fresh, *more_ids} & given, "no id is given twice"
        # Results, dead letters and delayed items of the dump are there.
        assert client.get_result(kept).result == b"result"
        with pytest.raises(NotFound):
            client.get_result(kept_later)
        assert [item.id for item in client.dequeue("grave", 10, wait_ms=20_000, lease_ms=60_000)] == [dead]
        assert client.get_result(later).state.name == "DELAYED"
    with rig.serving() as (host, client):
        assert "shard.restored" not in host.said(), "once only"
        assert len(drained(client, "load")) == 50
    assert rig.run("check", "--rows").returncode == 0


def test_a_served_shard_is_not_replaced(rig: Rig) -> None:
    with rig.serving() as (_, client):
        client.enqueue("a", b"1")
        dump, _ = rig.backup()
        client.enqueue("a", b"2")
        ran = rig.run("restore", dump, "--replace", "--yes")
        assert ran.returncode == 1
        assert "a host serves the shard" in ran.stderr
        assert sorted(drained(client, "a").values()) == [b"1", b"2"]


def test_mistakes(rig: Rig) -> None:
    for words, why in (
        (("backup", "--to", rig.dumps), "give the numbers of shards, or --all"),
        (("backup", "1", "--all", "--to", rig.dumps), "give the numbers of shards, or --all"),
        (("backup", "2", "--to", rig.dumps), "there is no shard 2: it is one of 1"),
        (("restore", rig.dumps / "none.sql.gz"), "there is no manifest"),
    ):
        ran = rig.run(*words)
        assert (ran.returncode, why in ran.stderr) == (1, True), ran.stderr
    dump, _ = rig.backup()
    about = manifest_path(dump)
    about.write_text(json.dumps(json.loads(about.read_text()) | {"foqs": "1\x1b[2J", "server": "\x1b[31m9"}))
    ran = rig.run("restore", dump, "--dry-run")
    assert "nothing was changed" in ran.stdout
    assert "\x1b" not in ran.stdout, "a manifest may be forged"
    dump.write_bytes(dump.read_bytes()[:-4])
    ran = rig.run("restore", dump)
    assert (ran.returncode, "was cut or replaced" in ran.stderr) == (1, True)
