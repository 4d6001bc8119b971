"""A copy of a shard is not served next to its original."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.store import locks
from foqs.store.link import Database
from foqs.store.maintenance import create_schema, renew_identity
from foqs.store.protocol import ShardRefused, explained
from foqs.store.sql import SqlStore
from tests.conftest import NewShardUrl
from tests.store.contract import insert
from tests.store.copies import dump, restore
from tests.store.shards import new_item


@pytest.fixture
def urls(new_shard_url: NewShardUrl) -> tuple[str, str]:
    """A shard and its copy in another database, on SQLite, MariaDB and MySQL in turn."""
    original, copy = new_shard_url(), new_shard_url()
    create_schema(original, 1)
    create_schema(copy, 1)
    restore(copy, dump(original))
    return original, copy


def opened(url: str, *, take_over: bool = True) -> tuple[SqlStore, str]:
    store = SqlStore(url, shard=1)
    return store, store.open("a", take_over=take_over).identity


def test_each_new_shard_has_an_identity(new_shard_url: NewShardUrl) -> None:
    found = set()
    for _ in range(2):
        url = new_shard_url()
        create_schema(url, 1)
        store, before = opened(url)
        store.close()
        store, after = opened(url)
        store.close()
        assert before == after
        assert len(before) == 32
        found.add(before)
    assert len(found) == 2


def test_a_copy_is_refused_while_its_original_is_served(urls: tuple[str, str]) -> None:
    """Each of the two, whichever is first; a take-over makes no difference."""
    for first, second in (urls, urls[::-1]):
        store, own = opened(first)
        with pytest.raises(ShardRefused, match=f"is a copy: its identity {own} is served in .* already") as refused:
            opened(second)
        assert "foqs shards renew 1" in explained(refused.value)
        assert not refused.value.held, "it is no shard to wait for"
        assert store.reconnect() is False, "nothing was taken from the owner"
        store.close()


def test_a_copy_takes_the_place_of_its_original(urls: tuple[str, str]) -> None:
    store, own = opened(urls[0])
    store.close(clean=True)
    copy, same = opened(urls[1])
    assert same == own
    copy.close()


@pytest.mark.slow
def test_a_copy_with_an_identity_of_its_own_is_served_as_well(urls: tuple[str, str]) -> None:
    store, own = opened(urls[0])
    with pytest.raises(ShardRefused, match="a host serves the shard"):
        renew_identity(urls[0], 1)
    new = renew_identity(urls[1], 1)
    copy, other = opened(urls[1])
    assert own != other == new
    with pytest.raises(ShardRefused, match="holds shard 1, not shard 2"):
        renew_identity(urls[1], 2)
    copy.close()
    store.close()


def test_a_hung_owner_is_replaced(urls: tuple[str, str]) -> None:
    """It has the same database, and is alive: a take-over ends its claim."""
    hung, own = opened(urls[0])
    store, same = opened(urls[0])
    assert own == same
    insert(store, new_item())
    with pytest.raises(ShardRefused, match="is a copy"):
        opened(urls[1])
    hung.close()
    with pytest.raises(ShardRefused, match="is a copy"):
        opened(urls[1])
    store.close()


def test_the_server_tells_of_a_copy_that_another_machine_serves(
    urls: tuple[str, str], shard_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the files of this machine. (Nothing tells of a copied SQLite file on another machine.)"""
    store, _ = opened(urls[0])
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path / "another"))
    (tmp_path / "another").mkdir()
    if shard_kind != "sqlite":
        with pytest.raises(ShardRefused, match=f"served in the database {urls[0].rpartition('/')[2].split('?')[0]}"):
            opened(urls[1])
    store.close()
    opened(urls[1])[0].close()


def test_a_folder_that_cannot_be_made_stops_nothing(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    store, _ = opened(urls[0])
    insert(store, new_item())
    store.close()


def test_a_claim_does_not_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection has the lock whenever the claim looks, and yet the lock is not free."""

    class Busy:
        def fetch(self, statement: str) -> list[tuple[int | None]]:
            return [(0,)] if "GET_LOCK" in statement else [(None,)]

    monkeypatch.setattr(locks, "_CLAIM_WAIT_S", 0.05)
    claim = locks.Identity(Database("mysql+pymysql://foqs@127.0.0.1:1/foqs"), 1)
    with pytest.raises(ShardRefused, match="an earlier connection") as refused:
        claim.claim(Busy(), "0" * 32, b"server")  # type: ignore[arg-type]
    assert refused.value.held, "the host tries again"
