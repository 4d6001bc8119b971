"""What a shard's database keeps for a cluster, read and removed without being its owner."""

from __future__ import annotations

import pytest

from foqs.policies.settings import Settings
from foqs.rows import Batch, Holding, SettingRow
from foqs.store.maintenance import create_schema, discard_settings, read_kept
from foqs.store.protocol import ShardRefused
from foqs.store.sql import SqlStore

SHOP, MAIL = (Settings(ns).changed({"a": "1"}, ()) for ns in ("shop", "ä"))


@pytest.fixture
def store(shard_url: str) -> SqlStore:
    create_schema(shard_url, 1)
    made = SqlStore(shard_url, shard=1)
    made.open("owner", take_over=False)
    for settings in (SHOP, MAIL, Settings("", 1)):
        made.change_settings(settings.ns, lambda _, settings=settings: settings)  # type: ignore[misc]
    return made


def row(settings: Settings) -> SettingRow:
    return SettingRow(settings.ns.encode(), settings.encoded())


def test_settings_and_slots_are_read_while_an_owner_serves(store: SqlStore, shard_url: str) -> None:
    slots = Holding(7, b"\x05" + bytes(127))
    store.commit(Batch(slots=slots, next_number=1))
    kept = read_kept(shard_url, 1)
    assert sorted(kept.settings) == sorted(map(row, (SHOP, MAIL, Settings("", 1))))
    assert (kept.slots.stamp, kept.slots.bits.rstrip(b"\0")) == (7, b"\x05")
    store.commit(Batch(next_number=1))
    store.close(clean=True)


def test_copies_are_removed_by_namespace(store: SqlStore, shard_url: str) -> None:
    """And the row that says that the shard has all of them."""
    discard_settings(shard_url, 1, ["ä", "none"])
    assert read_kept(shard_url, 1).settings == [row(SHOP)]
    assert store.change_settings("ä", lambda settings: settings.changed({"b": "2"}, ())).version == 1
    store.close(clean=True)


def test_the_database_of_another_shard_is_refused(store: SqlStore, shard_url: str) -> None:
    with pytest.raises(ShardRefused, match="holds shard 1, not shard 2"):
        read_kept(shard_url, 2)
    with pytest.raises(ShardRefused, match="holds shard 1, not shard 2"):
        discard_settings(shard_url, 2, ["shop"])
    store.close(clean=True)
