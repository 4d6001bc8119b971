"""Connections that break or hang, with transactions on an event loop."""

from collections.abc import Iterator

import pytest

from tests.store.loop_store import LoopShard
from tests.store.test_ownership import (  # noqa: F401 - collected here with the shard below
    store,
    test_a_connection_that_the_server_has_not_missed,
    test_a_database_that_hangs,
    test_a_killed_connection,
    test_an_outcome_that_is_still_open_is_waited_for,
)


@pytest.fixture
def shard(shard_url: str) -> Iterator[LoopShard]:
    made = LoopShard(shard_url)
    yield made
    made.close()
