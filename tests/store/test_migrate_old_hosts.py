"""The migration beside hosts of the version before, and with a million items."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from foqs.rows import Batch
from foqs.store import migrate
from foqs.store.schema import check_schema, create_schema, migrate_schema
from foqs.store.sql import SqlStore
from tests.api.hosts import HostProcess, environment, foqs, until
from tests.api.wire import Wire
from tests.conftest import SHARD_KINDS, Server
from tests.store.asking import run
from tests.store.contract import LANE
from tests.store.shards import new_item
from tests.store.test_migrate import ask
from tests.store.test_ownership import SERVERS
from tests.store.version_1 import NUMBER, ROOT, TABLES, load, old_code, old_environment

MILLION = 1_000_000


class Traffic:
    """A producer and a consumer of one host, in threads: each topic gets a few items, so lanes come and go."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._ended, self._all_stored = threading.Event(), threading.Event()
        self.stored: list[int] = []
        self.acked: list[int] = []
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Any) -> None:
        try:
            work(Wire(self._address, ns="traffic"))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.errors.append(error)

    def _produce(self, wire: Wire) -> None:
        number = 0
        try:
            while not self._ended.is_set():
                number += 1
                self.stored += wire.put(f"topic-{number % 50}", *[b"x" * 100] * 5, ttl_ms=3_600_000)
        finally:
            self._all_stored.set()

    def _consume(self, wire: Wire) -> None:
        while not self._all_stored.is_set() or len(self.acked) < len(self.stored):
            items = wire.take([(f"topic-{number}", 20) for number in range(50)], wait_ms=100)
            if items:
                assert wire.ack(*items) == [0] * len(items)
                self.acked += [item.id for item in items]

    def advance(self, count: int = 100) -> None:
        """Wait until the consumer acked `count` more items."""
        wanted = len(self.acked) + count
        until(lambda: len(self.acked) >= wanted or bool(self.errors), f"{count} more acks")
        assert self.errors == []

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        assert self.errors == []
        assert sorted(self.acked) == sorted(self.stored)


@pytest.mark.process
@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.parametrize("shard_kind", ["mariadb"], indirect=True)
def test_an_old_host_serves_during_a_migration(shard_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error, with traffic between the statements; so do one that starts afterwards, and a new one."""
    old = old_environment(old_code(tmp_path / "old"))
    config = tmp_path / "foqs.toml"
    config.write_text(f'[server]\nport = 0\n[host]\nlane_idle_ms = 0\n[[shards]]\nid = {NUMBER}\nurl = "{shard_url}"\n')
    create = [sys.executable, "-m", "foqs", "shards", "create", "--config", str(config)]
    subprocess.run(create, env=environment(**old), check=True, capture_output=True)
    assert ask(shard_url, "SELECT version FROM shard") == [(1,)]

    with HostProcess(tmp_path / "first", ["serve", "--config", config], old) as host:
        traffic = Traffic(host.address)
        real = migrate._run_patiently

        def with_traffic(connection: Connection, errors: Any, statement: str) -> None:
            real(connection, errors, statement)
            traffic.advance()

        monkeypatch.setattr(migrate, "_run_patiently", with_traffic)
        traffic.advance()
        assert migrate_schema(shard_url, NUMBER) == 1
        traffic.advance()
        traffic.end()
        assert host.stop() == 0
        assert host.faults() == []
        assert not [word for word in ("shard.failed", "shard.lost", "store.mismatch") if word in host.said()]
    assert check_schema(shard_url, NUMBER) == []
    assert ask(shard_url, "SELECT COUNT(*) FROM item") == [(0,)]

    for name, environ in (("second", old), ("third", {})):
        with HostProcess(tmp_path / name, ["serve", "--config", config], environ) as host:
            traffic = Traffic(host.address)
            traffic.advance()
            traffic.end()
            assert host.stop() == 0
            assert host.faults() == []
    assert ask(shard_url, "SELECT version, min_reader FROM shard") == [(2, 1)]


@pytest.mark.process
@pytest.mark.parametrize("shard_kind", SHARD_KINDS[:2], indirect=True)
def test_old_commands_after_going_back(shard_url: str, shard_kind: str, tmp_path: Path) -> None:
    """They object to the index of `lane` until the statements of docs/operations.md put the old one back."""
    old = old_environment(old_code(tmp_path / "old"))
    load(shard_url, shard_kind)
    migrate_schema(shard_url, NUMBER)
    config = tmp_path / "foqs.toml"
    config.write_text(f'[[shards]]\nid = {NUMBER}\nurl = "{shard_url}"\n')
    checked = foqs("shards", "check", "--config", config, env=old)
    assert checked.stdout.startswith(f"shard {NUMBER}: the index lane_of_names of lane is UNIQUE")
    assert len(checked.stdout.splitlines()) == 1
    docs = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    put_back = {
        "sqlite": "DROP INDEX lane_of_names; CREATE UNIQUE INDEX lane_of_names ON lane (ns, topic, fairness)",
        "mariadb": "ALTER TABLE lane DROP INDEX lane_of_names, ADD UNIQUE INDEX lane_of_names (ns, topic, fairness)",
    }[shard_kind]
    for statement in (*put_back.split("; "), "UPDATE shard SET version = 1"):
        assert statement in docs
        run(shard_url, statement)
    for command, said in (("check", "good"), ("create", "ready")):
        ran = foqs("shards", command, "--config", config, env=old)
        assert (ran.returncode, ran.stdout) == (0, f"shard {NUMBER}: {said}\n")
    assert migrate_schema(shard_url, NUMBER) == 1
    assert check_schema(shard_url, NUMBER) == []


@pytest.mark.process
@pytest.mark.parametrize("shard_kind", SHARD_KINDS[:2], indirect=True)
def test_an_old_host_waits_for_an_orderly_close(shard_url: str, tmp_path: Path) -> None:
    """It would not find items without a row in `ready`."""
    old = old_environment(old_code(tmp_path / "old"))
    create_schema(shard_url, NUMBER)
    config = tmp_path / "foqs.toml"
    config.write_text(f'[server]\nport = 0\n[[shards]]\nid = {NUMBER}\nurl = "{shard_url}"\n')
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("crashed", take_over=False)
    item = new_item()
    item.unindexed = True
    store.commit(Batch(lanes_new=[LANE], inserts=[item], next_number=2, indexed_to=item.id - 1))
    store.close()
    needs = "the schema is version 2 and needs a host that knows 2; this one knows 1: upgrade foqs"
    with HostProcess(tmp_path / "early", ["serve", "--config", config], old) as host:
        until(lambda: needs in host.said(), "the old host says why it does not open the shard")
        assert ask(shard_url, "SELECT COUNT(*) FROM ready") == [(0,)]
        host.stop()
    store.open("new", take_over=True)
    store.close(clean=True)
    with HostProcess(tmp_path / "late", ["serve", "--config", config], old) as host:
        assert Wire(host.address, ns="ns").one("topic").id == item.id
        assert host.stop() == 0
        assert needs not in host.said()


@SERVERS
@pytest.mark.slow
def test_a_million_items_are_not_rewritten(shard_url: str, shard_kind: str, request: pytest.FixtureRequest) -> None:
    """A table that is copied gets another id in InnoDB's dictionary."""
    server: Server = request.getfixturevalue(shard_kind)
    load(shard_url, shard_kind)
    digits = "(SELECT 0 AS n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 10)) + ")"
    powers = " CROSS JOIN ".join(f"{digits} AS d{power}" for power in range(6))
    number = " + ".join(f"d{power}.n * {10**power}" for power in range(6))
    first = ask(shard_url, "SELECT MAX(id) + 1 FROM item")[0][0]
    run(
        shard_url,
        f"INSERT INTO item SELECT {first} + {number}, 1, 0, 1, 1, 0, 0, 1, NULL, NULL, 'payload' FROM {powers}",
        f"INSERT INTO ready SELECT lane, priority, deliver_after, id, 0, 0, 7 FROM item WHERE id >= {first}",
    )
    before = table_ids(server, shard_url)
    assert migrate_schema(shard_url, NUMBER) == 1
    after = table_ids(server, shard_url)
    assert before.keys() == set(TABLES)
    assert {table: after[table] for table in before} == before
    run(shard_url, "ALTER TABLE lane FORCE, ALGORITHM=COPY")  # what the ids would show
    assert table_ids(server, shard_url)["lane"] != before["lane"]
    assert check_schema(shard_url, NUMBER) == []
    assert ask(shard_url, "SELECT COUNT(*) FROM ready")[0][0] > MILLION


def table_ids(server: Server, url: str) -> dict[str, int]:
    schema = url.rpartition("/")[2]
    catalogue = "INNODB_SYS_TABLES" if "MariaDB" in server.version else "INNODB_TABLES"
    found = ask(url, f"SELECT name, table_id FROM information_schema.{catalogue} WHERE name LIKE '{schema}/%'")
    return {str(name).partition("/")[2]: int(table) for name, table in found}
