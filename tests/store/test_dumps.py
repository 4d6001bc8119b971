"""Dumps of a shard and their way back, on SQLite, MariaDB and MySQL, with the databases' own tools."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from foqs.ids import Mark
from foqs.item_batch import MOST_FAILED_IDS, MemberRows
from foqs.rows import Batch, LaneRow
from foqs.store import dump as dump_module
from foqs.store import dump_tools
from foqs.store.checkup import check_shard
from foqs.store.dump import DumpCut, Manifest, back_up, decode_manifest, manifest_path, read_manifest, verify
from foqs.store.link import Database
from foqs.store.maintenance import create_schema, migrate_schema
from foqs.store.protocol import ShardRefused, StoreDown, StoreFull, explained
from foqs.store.restore import look_at_target, restore
from foqs.store.sql import SqlStore
from foqs.store.tables import SCHEMA_VERSION
from tests.api.hosts import start
from tests.conftest import PRODUCTS, SHARD_KINDS, NewShardUrl, NewTools, Server
from tests.store.batch_contract import ONE, home, member, part
from tests.store.copies import dump as tables_of
from tests.store.order_contract import ordered
from tests.store.row_contract import insert, ready_key, timer_row
from tests.store.shards import NOW_MS, NUMBER, new_item
from tests.support.waiting import wait_until

AT = datetime(2026, 2, 14, 3, 0, tzinfo=UTC)
Shard = tuple[str, SqlStore]


@pytest.fixture(autouse=True)
def tools(new_tools: NewTools, shard_kind: str) -> Path:
    """The folder at the front of PATH."""
    return new_tools(shard_kind)


@pytest.fixture
def shard(new_shard_url: NewShardUrl) -> Iterator[Shard]:
    """A shard that is served, with rows of any bytes."""
    url = new_shard_url()
    create_schema(url, NUMBER)
    store = SqlStore(url, shard=NUMBER)
    store.open("a", take_over=True)
    names = (text.encode() for text in ("ns-\U0001f511", "topic-\u00fc", "tenant-\u6f22"))
    store.commit(Batch(lanes_new=[LaneRow(1, *names)], next_number=10))
    insert(store, new_item(1, payload=bytes(range(256)) * 512, metadata=b"\x00\xff'\"\\\n\r\x1a", headers=b"\n--\n"))
    insert(store, new_item(2, payload=b""))
    yield url, store
    store.close()


def backed_up(url: str, folder: Path) -> tuple[Path, Manifest]:
    return back_up(url, NUMBER, folder, now=lambda: AT, foqs="1.0")


def without_restore(tables: dict[str, list[dict[str, object]]]) -> dict[str, list[dict[str, object]]]:
    (row,) = tables["shard"]
    return {**tables, "shard": [{**row, "restored_ms": 0}]}


def test_a_dump_has_each_row_as_it_is(shard: Shard, new_shard_url: NewShardUrl, tmp_path: Path) -> None:
    url, store = shard
    in_order = ordered(3, bytes(range(0xF0, 0x100)), "ключ'\\\0".encode(), lane=1)
    store.commit(Batch(inserts=[in_order, ordered(4, lane=1, due_ms=NOW_MS)], ordered=True, next_number=10))
    failed = tuple(range(0xF0, 0xF0 + MOST_FAILED_IDS))
    rows = MemberRows(
        new=[(member(5).id, ONE), (77, ONE)], failed=[77], created=[home(ONE, on_end=bytes(range(256)))],
        parts=[part(ONE, failed_ids=failed)],
    )  # fmt: skip
    store.commit(Batch(inserts=[member(5)], members=rows, next_number=10))
    dump, made = backed_up(url, tmp_path / "new" / "dumps")
    assert dump.name == f"shard-{NUMBER}-20260214T030000Z.{'sqlite' if url.startswith('sqlite') else 'sql'}.gz"
    assert read_manifest(dump) == made == decode_manifest(made.encoded())
    assert (made.shard, made.schema_version, made.bytes) == (NUMBER, SCHEMA_VERSION, dump.stat().st_size)
    assert made.began == "2026-02-14T03:00:00.000+00:00"
    assert {path.stat().st_mode & 0o777 for path in dump.parent.iterdir()} == {0o600}
    assert sorted(path.name for path in dump.parent.iterdir()) == [dump.name, manifest_path(dump).name]
    verify(dump, made)
    copy = new_shard_url()
    assert not look_at_target(copy, made).used
    restore(copy, dump, made, replace=False)
    assert tables_of(copy)["shard"][0]["restored_ms"] == -1
    assert without_restore(tables_of(copy)) == tables_of(url)
    assert check_shard(copy, NUMBER).findings == []


def test_a_dump_into_a_database_that_is_missing(shard: Shard, new_shard_url: NewShardUrl, tmp_path: Path) -> None:
    url, _ = shard
    dump, made = backed_up(url, tmp_path)
    parsed = make_url(new_shard_url())
    missing = parsed.set(database=f"{parsed.database}_missing").render_as_string(hide_password=False)
    assert look_at_target(missing, made) == (0, False, False, look_at_target(missing, made).place)
    try:
        restore(missing, dump, made, replace=False)
        assert without_restore(tables_of(missing)) == tables_of(url)
    finally:
        if not missing.startswith("sqlite"):
            with Database(url).connect() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {parsed.database}_missing")


@pytest.mark.slow
def test_a_shard_is_replaced_on_demand_only(shard: Shard, tmp_path: Path) -> None:
    url, store = shard
    dump, made = backed_up(url, tmp_path)
    before = tables_of(url)
    insert(store, new_item(3))
    with pytest.raises(ShardRefused, match="is not empty"):
        restore(url, dump, made, replace=False)
    with pytest.raises(ShardRefused, match="a host serves the shard"):
        restore(url, dump, made, replace=True)
    assert len(tables_of(url)["item"]) == 3
    store.close(clean=True)
    target = look_at_target(url, made)
    assert (target.items, target.used, target.broken) == (3, True, False)
    restore(url, dump, made, replace=True)
    assert without_restore(tables_of(url)) == before


def test_the_next_owner_ends_leases_and_skips_ids(shard: Shard, tmp_path: Path) -> None:
    """Whatever the marks say: without one, and with one that is as old as the dump."""
    url, store = shard
    leased = new_item(3)
    insert(store, leased)
    store.commit(
        Batch(ready_gone=[ready_key(leased)], timer_new=[timer_row(leased, NOW_MS * 2, lease=5)], next_number=10)
    )
    dump, made = backed_up(url, tmp_path)
    store.close(clean=True)
    identity = made.identity
    for marks in (None, {}, {identity: Mark(made.epoch, made.next_number, made.next_number, made.seq)}):
        restore(url, dump, made, replace=True)
        opened = store.open("b", take_over=False, marks=marks)
        assert opened.identity == identity
        assert opened.leases_ended == 1
        assert opened.behind is not None
        assert opened.next_number > 1 << 30
        assert opened.epoch > made.epoch
        store.close(clean=True)
        assert tables_of(url)["shard"][0]["restored_ms"] > 0
        again = store.open("b", take_over=False)
        assert (again.behind, again.leases_ended) == (None, 0)
        store.close(clean=True)


def test_another_shard_is_never_replaced(shard: Shard, new_shard_url: NewShardUrl, tmp_path: Path) -> None:
    dump, made = backed_up(shard[0], tmp_path)
    other = new_shard_url()
    create_schema(other, NUMBER + 1)
    with pytest.raises(ShardRefused, match=f"holds shard {NUMBER + 1}, not shard {NUMBER}"):
        restore(other, dump, made, replace=True)
    with pytest.raises(ShardRefused, match=f"holds shard {NUMBER}, not shard 9"):
        back_up(shard[0], 9, tmp_path, now=lambda: AT, foqs="1.0")


def test_a_restore_that_is_broken_off_leaves_no_shard(
    shard: Shard, new_shard_url: NewShardUrl, shard_kind: str, tmp_path: Path
) -> None:
    """The dump ends in the middle, as after a kill. Neither a host nor `foqs shards create` takes the rest."""
    url, store = shard
    dump, made = backed_up(url, tmp_path)
    store.close(clean=True)
    before = tables_of(url)
    content = gzip.decompress(dump.read_bytes())
    whole = dump.read_bytes()
    cut = content.index(b"INSERT INTO `lane`") if shard_kind != "sqlite" else len(content) // 2
    dump.write_bytes(gzip.compress(content[:cut])[:-9])
    copy = new_shard_url()
    for target, replace in ((copy, False), (url, True)):
        with pytest.raises(DumpCut):
            restore(target, dump, made, replace=replace)
    dump.write_bytes(whole)
    if shard_kind == "sqlite":
        assert tables_of(url) == before, "a file is replaced as a whole"
    else:
        for target in (copy, url):
            with pytest.raises(ShardRefused, match="a restore of the shard is not complete"):
                SqlStore(target, shard=NUMBER).open("b", take_over=True)
            for command in (create_schema, migrate_schema):
                with pytest.raises(ShardRefused, match="a restore of the shard is not complete"):
                    command(target, NUMBER)
            with pytest.raises(ShardRefused, match="a restore of the shard is not complete"):
                backed_up(target, tmp_path / "other")
            assert look_at_target(target, made).broken
    restore(copy, dump, made, replace=False)
    assert {**tables_of(copy), "shard": []} == {**before, "shard": []}


def test_items_without_a_row_of_the_shard_are_refused(shard: Shard) -> None:
    """A first row would give their ids again. A kill between the last two statements of a load leaves it so."""
    url, store = shard
    store.close(clean=True)
    with Database(url).connect() as connection:
        connection.exec_driver_sql("DELETE FROM shard")
    with pytest.raises(ShardRefused, match="has items and no row in table shard"):
        create_schema(url, NUMBER)


def test_files_that_were_cut_or_changed(shard: Shard, tmp_path: Path) -> None:
    dump, made = backed_up(shard[0], tmp_path)
    whole = dump.read_bytes()
    dump.write_bytes(whole[:-1])
    with pytest.raises(DumpCut, match="was cut or replaced"):
        verify(dump, made)
    dump.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DumpCut, match="was damaged or replaced"):
        verify(dump, made)
    for text, why in (("", "not JSON"), ("{}", "not a manifest"), ('{"format": 1}', "shard is missing")):
        manifest_path(dump).write_text(text)
        with pytest.raises(DumpCut, match=why):
            read_manifest(dump)
    manifest_path(dump).write_text('{"format": 2}')
    with pytest.raises(ShardRefused, match="reads format 1"):
        read_manifest(dump)
    manifest_path(dump).unlink()
    with pytest.raises(DumpCut, match="there is no manifest"):
        read_manifest(dump)
    later = decode_manifest(json.dumps(json.loads(made.encoded()) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(ShardRefused, match="the dump has schema version") as refused:
        look_at_target(shard[0], later)
    assert "upgrade foqs" in explained(refused.value)
    other = decode_manifest(
        json.dumps(json.loads(made.encoded()) | {"product": "SQLite" if made.product != "SQLite" else "MySQL"})
    )
    with pytest.raises(ShardRefused, match="the dump is one of"):
        look_at_target(shard[0], other)


def test_a_full_disk_leaves_nothing(shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dumps"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dump_module.os, "fsync", full)
    with pytest.raises(StoreFull, match=r"shard-7-\S+: the disk is full"):
        backed_up(shard[0], folder)
    assert list(folder.iterdir()) == []


def test_two_backups_in_a_second(shard: Shard, tmp_path: Path) -> None:
    dump, _ = backed_up(shard[0], tmp_path)
    before = dump.read_bytes()
    with pytest.raises(StoreDown, match="exists: another backup began in the same second"):
        backed_up(shard[0], tmp_path)
    assert dump.read_bytes() == before


# ------------------------------------------------------------------------------------------------ the tools


ON_SERVERS = pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:], indirect=True)
ON_MYSQL = pytest.mark.parametrize("shard_kind", SHARD_KINDS[2:], indirect=True)


def program(folder: Path, name: str, text: str) -> None:
    """Put a program before the real one, which it may call as `$REAL`."""
    real = shutil.which(name)
    path = folder / name
    if real is not None and Path(real).parent == folder:
        Path(real).rename(folder / f"{name}.real")
        real = str(folder / f"{name}.real")
    path.write_text(f"#!/bin/sh\nREAL={real}\n{text}\n")
    path.chmod(0o755)


@ON_SERVERS
def test_a_tool_that_ends_early(shard: Shard, shard_kind: str, tools: Path, tmp_path: Path) -> None:
    """With status 0, with an error, and by a signal: no file is left."""
    name = dump_tools.DUMP[PRODUCTS[shard_kind]][0]
    folder = tmp_path / "dumps"
    version = 'test "$1" = --version && exec $REAL --version'
    for text, error, why in (
        ('$REAL "$@" | head -n 20', DumpCut, "ended early: its last line is not -- Dump completed"),
        ("echo 'Error 2013: Lost connection at row: 5' >&2; exit 3", StoreDown, "the connection was lost"),
        ("echo 'out of memory' >&2; exit 2", dump_tools.ToolFailed, "ended with 2: out of memory"),
        ("kill -9 $$", dump_tools.ToolFailed, "was ended by signal 9"),
    ):
        program(tools, name, f"{version}\n{text}")
        with pytest.raises(error, match=f"{name}.*{why}"):
            backed_up(shard[0], folder)
        assert list(folder.iterdir()) == []
        (tools / name).unlink()
        if (tools / f"{name}.real").exists():
            (tools / f"{name}.real").rename(tools / name)


@ON_SERVERS
def test_sigterm_leaves_nothing(shard: Shard, shard_kind: str, tools: Path, tmp_path: Path) -> None:
    """The command ends while its tool writes."""
    config, folder = tmp_path / "foqs.toml", tmp_path / "dumps"
    config.write_text(f'[[shards]]\nid = {NUMBER}\nurl = "{shard[0]}"\n')
    began = tmp_path / "began"
    version = 'test "$1" = --version && exec $REAL --version'
    text = f"{version}\necho $$ > {began}.new; mv {began}.new {began}; exec sleep 300"
    program(tools, dump_tools.DUMP[PRODUCTS[shard_kind]][0], text)
    with tempfile.TemporaryFile("w+") as said, open("/dev/null") as nothing:
        args = ["shards", "backup", str(NUMBER), "--to", str(folder), "-c", str(config)]
        command = start(args, nothing.fileno(), said.fileno(), said.fileno())
        wait_until(began.exists)
        assert list(folder.glob(".shard-*.part"))
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == -signal.SIGTERM
        said.seek(0)
        assert said.read() == f"foqs: interrupted: shard {NUMBER}: no dump\nfoqs: ended by SIGTERM\n"
    assert list(folder.iterdir()) == []
    tool = int(began.read_text())

    def ended() -> bool:  # and its new parent has noticed
        with suppress(ProcessLookupError):
            os.kill(tool, 0)
            return False
        return True

    wait_until(ended)


@ON_SERVERS
def test_no_tool_and_the_tool_of_another_product(
    shard: Shard, shard_kind: str, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = shard
    dump, made = backed_up(url, tmp_path)
    store.close(clean=True)
    before = tables_of(url)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    for action in (lambda: backed_up(url, tmp_path / "other"), lambda: restore(url, dump, made, replace=True)):
        with pytest.raises(dump_tools.ToolMissing, match="needs the program") as missing:
            action()
        assert "mariadb-client" in explained(missing.value)
    if shard_kind == "mariadb":
        (empty / "mysqldump").write_text("#!/bin/sh\necho mysqldump  Ver 9.7.4 for Linux\n")
        (empty / "mysqldump").chmod(0o755)
        with pytest.raises(dump_tools.ToolMissing, match="mysqldump is MySQL's"):
            backed_up(url, tmp_path / "other")
    assert tables_of(url) == before, "nothing was changed"


@ON_MYSQL
def test_tools_of_mariadb_on_mysql(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_shard_url: NewShardUrl
) -> None:
    """Debian has only these. Each side of a way may have been made with the tools of the other."""
    url, _ = shard
    debian = tmp_path / "debian"
    debian.mkdir()
    for name in ("mariadb-dump", "mariadb"):
        path = shutil.which(name)
        if path is None:
            pytest.skip("no tools of MariaDB")
        (debian / name).symlink_to(path)
    both = os.environ["PATH"]
    for dumping, loading in ((str(debian), str(debian)), (str(debian), both), (both, str(debian))):
        folder = tmp_path / f"dumps-{len(list(tmp_path.iterdir()))}"
        monkeypatch.setenv("PATH", dumping)
        dump, made = backed_up(url, folder)
        assert ("MariaDB" in made.tool) == (dumping == str(debian))
        monkeypatch.setenv("PATH", loading)
        copy = new_shard_url()
        restore(copy, dump, made, replace=False)
        assert without_restore(tables_of(copy)) == tables_of(url)


@pytest.fixture
def account(shard: Shard, shard_kind: str, request: pytest.FixtureRequest) -> Iterator[Account]:
    """An account with a password that options could misread, on the shard's database."""
    server: Server = request.getfixturevalue(shard_kind)
    made = Account(server, shard[0], "dump'er", "a#b \\ \"c\" 'd';\u00fc=%")
    yield made
    server.query("DROP USER %s@'%%'", made.user)


class Account:
    def __init__(self, server: Server, url: str, user: str, password: str) -> None:
        self.user, self.password, self._server = user, password, server
        server.query("CREATE USER %s@'%%' IDENTIFIED BY %s", user, password)
        parsed = make_url(url)
        self.database = parsed.database
        self.url = parsed.set(username=user, password=password).render_as_string(hide_password=False)

    def grant(self, rights: str) -> None:
        self._server.query(f"GRANT {rights} ON `{self.database}`.* TO %s@'%%'", self.user)

    def can(self, mend: str) -> None:
        """Run the statement of a message."""
        (statement,) = re.findall(r"GRANT .*(?=;)", mend)
        self._server.query(statement)


@ON_SERVERS
def test_the_rights_that_a_dump_and_a_load_need(
    account: Account, shard: Shard, tmp_path: Path, new_shard_url: NewShardUrl
) -> None:
    """Each message names the GRANT, and with it the command succeeds."""
    url, store = shard
    account.grant("CREATE")
    with pytest.raises(ShardRefused, match="denies") as refused:
        backed_up(account.url, tmp_path)
    assert "GRANT SELECT ON" in explained(refused.value)
    account.can(explained(refused.value))
    dump, made = backed_up(account.url, tmp_path)
    store.close(clean=True)
    account.grant("SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX")
    before = tables_of(url)
    with pytest.raises(ShardRefused) as refused:
        restore(account.url, dump, made, replace=True)
    assert "DROP ON" in explained(refused.value)
    assert tables_of(url) == before, "nothing was changed"
    account.can(explained(refused.value))
    restore(account.url, dump, made, replace=True)
    assert {**tables_of(url), "shard": []} == {**before, "shard": []}


@ON_SERVERS
def test_a_password_is_in_no_list_of_processes(
    account: Account, shard_kind: str, shard: Shard, tools: Path, tmp_path: Path
) -> None:
    account.grant("SELECT")
    name = dump_tools.DUMP[PRODUCTS[shard_kind]][0]
    seen = tmp_path / "seen"
    program(
        tools,
        name,
        f'tr "\\0" "\\n" < /proc/$$/cmdline >> {seen}\ntr "\\0" "\\n" < /proc/$$/environ >> {seen}\nexec $REAL "$@"',
    )
    backed_up(account.url, tmp_path)
    text = seen.read_bytes()
    assert b"--defaults-file=" in text
    assert account.password.encode() not in text
    assert b"MYSQL_PWD" not in text
