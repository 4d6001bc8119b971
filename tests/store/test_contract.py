"""The store's contract on SQLite, MariaDB and MySQL, and with transactions on an event loop."""

import socket
from collections.abc import Iterator

import pytest

from foqs.store.protocol import ShardStore
from tests.conftest import SHARD_KINDS
from tests.store.contract import StoreContract, body, insert
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

    @pytest.mark.parametrize("packet_bytes", [64 << 10, 4 << 20], ids=["several-packets", "one-packet"])
    def test_a_transaction_larger_than_the_buffer(self, store: ShardStore, packet_bytes: int) -> None:
        """The socket takes a packet in parts, and each packet waits for the replies to the one before."""
        assert isinstance(store, LoopStore)
        assert store._link is not None and store.plain_socket is not None
        store._link.packet_bytes = packet_bytes
        store.plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        items = [new_item(n, payload=bytes([n]) * 100_000) for n in range(1, 11)]
        insert(store, *items)
        assert sorted(store.bodies([item.id for item in items])) == [body(item) for item in items]
        assert store.mismatches == 0


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
