"""Dumps with a hostile or damaged content, and loads that end at the worst moment."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from foqs.store import dump_tools
from foqs.store.dump import DumpCut, Manifest
from foqs.store.link import Database
from foqs.store.maintenance import create_schema
from foqs.store.protocol import ShardRefused, StoreError
from foqs.store.restore import look_at_target, restore
from foqs.store.sql import SqlStore
from tests.conftest import PRODUCTS, NewShardUrl, NewTools
from tests.store.copies import dump as tables_of
from tests.store.shards import NUMBER
from tests.store.test_dumps import ON_SERVERS, Shard, backed_up, program, shard, without_restore

__all__ = ["shard"]  # the fixture


@pytest.fixture(autouse=True)
def tools(new_tools: NewTools, shard_kind: str) -> Path:
    """The folder at the front of PATH."""
    return new_tools(shard_kind)


def forged(dump: Path, made: Manifest, content: bytes) -> Manifest:
    """Give the dump another content, and return its manifest."""
    packed = gzip.compress(content)
    dump.write_bytes(packed)
    return replace(made, bytes=len(packed), sha256=sha256(packed).hexdigest())


@ON_SERVERS
@pytest.mark.parametrize("lost", ["the end", "the tool", "the lock"])
def test_no_host_opens_a_dump_without_its_mark(
    shard: Shard, shard_kind: str, tools: Path, tmp_path: Path, new_shard_url: NewShardUrl, lost: str
) -> None:
    """The tool has loaded the whole dump, and then the command, the tool or the connection with the lock is gone."""
    url, _ = shard
    dump, made = backed_up(url, tmp_path)
    name = dump_tools.LOAD[PRODUCTS[shard_kind]][0]
    version = 'test "$1" = --version && exec $REAL --version'
    copy = new_shard_url()
    if lost == "the end":
        load = "sed '/restored_ms = -1/d' | $REAL \"$@\"; exit 1"
    elif lost == "the tool":
        load = "sed '/restored_ms = -1/d' | $REAL \"$@\"; kill -9 $$"
    else:
        kill = "SELECT CONCAT('KILL ', id, ';') FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
        kill += f" AND db = '{make_url(copy).database}'"
        load = f'$REAL "$@" || exit; echo "{kill}" | $REAL "$@" | tail -n +2 | $REAL "$@"'
    program(tools, name, f"{version}\n{load}")
    with pytest.raises(StoreError):
        restore(copy, dump, made, replace=False)
    with pytest.raises(ShardRefused):
        SqlStore(copy, shard=NUMBER).open("b", take_over=True)
    with pytest.raises(ShardRefused):
        create_schema(copy, NUMBER)
    (tools / name).unlink()
    if (tools / f"{name}.real").exists():
        (tools / f"{name}.real").rename(tools / name)
    restore(copy, dump, made, replace=True)
    assert tables_of(copy)["shard"][0]["restored_ms"] == -1
    assert without_restore(tables_of(copy)) == tables_of(url)


def test_a_dump_that_is_something_else(shard: Shard, tmp_path: Path, new_shard_url: NewShardUrl) -> None:
    """With a manifest that fits its bytes."""
    url, store = shard
    dump, made = backed_up(url, tmp_path)
    store.close(clean=True)
    before = tables_of(url)
    content = gzip.decompress(dump.read_bytes())
    other = content.replace(b"INSERT INTO `shard`", b"INSERT INTO `shar_`") if not url.startswith("sqlite") else b""
    for text in (b"", b"no dump at all;", content[: len(content) // 3], other):
        copy = new_shard_url()
        with pytest.raises(StoreError) as refused:
            restore(copy, dump, forged(dump, made, text), replace=False)
        assert str(refused.value)
        with pytest.raises(ShardRefused):
            SqlStore(copy, shard=NUMBER).open("b", take_over=True)
    if url.startswith("sqlite"):
        with pytest.raises(StoreError):
            restore(url, dump, forged(dump, made, b"no dump"), replace=True)
        assert tables_of(url) == before


def test_a_manifest_that_speaks_of_another_shard(shard: Shard, tmp_path: Path, new_shard_url: NewShardUrl) -> None:
    dump, made = backed_up(shard[0], tmp_path)
    copy = new_shard_url()
    with pytest.raises(DumpCut, match=f"has shard {NUMBER} of"):
        restore(copy, dump, replace(made, shard=NUMBER + 1), replace=False)
    for number in (NUMBER, NUMBER + 1):
        with pytest.raises(ShardRefused):
            SqlStore(copy, shard=number).open("b", take_over=True)


@ON_SERVERS
def test_a_dump_that_asks_for_a_file_of_this_machine(
    shard: Shard, tmp_path: Path, new_shard_url: NewShardUrl, tools: Path
) -> None:
    dump, made = backed_up(shard[0], tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    content = gzip.decompress(dump.read_bytes())
    ask = f"CREATE TABLE stolen (a TEXT);\nLOAD DATA LOCAL INFILE '{secret}' INTO TABLE stolen;\n".encode()
    copy = new_shard_url()
    with pytest.raises(StoreError):
        restore(copy, dump, forged(dump, made, content.replace(b"DROP TABLE", ask + b"DROP TABLE", 1)), replace=False)
    with Database(copy).connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM stolen").scalar_one() == 0


@pytest.fixture
def odd_url(new_shard_url: NewShardUrl) -> Iterator[str]:
    """The URL of a database that is not there, with a name that options and shells could misread."""
    parsed = make_url(new_shard_url())
    url = parsed.set(database=_ODD)
    yield url.render_as_string(hide_password=False)
    with Database(parsed.render_as_string(hide_password=False)).connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS `{_ODD}`".replace("%", "%%"))


_ODD = "-f o%q#s'\"\u00fc"


@ON_SERVERS
def test_a_database_with_an_odd_name(shard: Shard, odd_url: str, tmp_path: Path) -> None:
    url, _ = shard
    dump, made = backed_up(url, tmp_path)
    restore(odd_url, dump, made, replace=False)
    assert without_restore(tables_of(odd_url)) == tables_of(url)
    again, made = backed_up(odd_url, tmp_path / "again")
    assert look_at_target(odd_url, made).used is True
    restore(odd_url, again, made, replace=True)
    assert without_restore(tables_of(odd_url)) == tables_of(url)
