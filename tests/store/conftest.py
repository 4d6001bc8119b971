from collections.abc import Iterator

import pytest

from tests.store.shards import ServerShard, SqliteShard


@pytest.fixture
def shard(shard_kind: str, shard_url: str) -> Iterator[ServerShard | SqliteShard]:
    """A fresh shard on SQLite, MariaDB and MySQL in turn."""
    made = SqliteShard(shard_url) if shard_kind == "sqlite" else ServerShard(shard_url)
    yield made
    made.close()
