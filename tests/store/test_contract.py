"""The store's contract on SQLite, MariaDB and MySQL, and with transactions on an event loop."""

from collections.abc import Iterator

import pytest

from foqs.store.protocol import ShardStore
from tests.conftest import SHARD_KINDS
from tests.store.contract import StoreContract, insert
from tests.store.loop_store import BinaryShard, BinaryStore, LoopShard, LoopStore
from tests.store.shards import new_item


class TestSqlStore(StoreContract):
    pass


@pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:], indirect=True)
class TestTransactionsOnTheLoop(StoreContract):
    @pytest.fixture
    def shard(self, shard_kind: str, shard_url: str) -> Iterator[LoopShard]:
        made = LoopShard(shard_url)
        yield made
        made.close()

    def test_they_run_on_the_loop(self, store: ShardStore) -> None:
        assert isinstance(store, LoopStore)
        assert store.ran > 0, "the fixture's own transaction"


@pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:], indirect=True)
class TestPreparedInserts(StoreContract):
    @pytest.fixture
    def shard(self, shard_kind: str, shard_url: str) -> Iterator[LoopShard]:
        made = BinaryShard(shard_url)
        yield made
        made.close()

    def test_new_items_are_parameters(self, store: ShardStore) -> None:
        insert(store, new_item())
        assert isinstance(store, BinaryStore)
        assert store.pipelines == 1
