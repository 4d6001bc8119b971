"""A read of dead letters reads about the rows that it may look at, however many there are."""

from __future__ import annotations

from foqs.policies.failures import FailureFilter
from foqs.rows import Batch, FailureCause, FailureRow
from tests.store.contract import insert
from tests.store.dead_contract import DEAD
from tests.store.shards import NOW_MS, ServerShard, new_item
from tests.store.test_ownership import SERVERS
from tests.store.test_reads import rows_read

DEAD_LETTERS = 4_000
ROWS = 100


@SERVERS
def test_rows_read(shard: ServerShard) -> None:
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[DEAD], next_number=1))
    items = [new_item(number, payload=b"p", lane=2) for number in range(1, DEAD_LETTERS + 1)]
    insert(store, *items, next_number=DEAD_LETTERS + 1)
    failures = [
        FailureRow(2, at % 2, item.id, FailureCause.FAILED, 5, NOW_MS, b"t", b"", b"reason")
        for at, item in enumerate(items)
    ]
    store.commit(Batch(failure_new=failures, next_number=DEAD_LETTERS + 1))
    middle = (0, items[DEAD_LETTERS // 2].id)
    for wanted in (FailureFilter(), FailureFilter(fingerprint=0), FailureFilter(reason_contains=b"none")):
        assert rows_read(store, lambda wanted=wanted: store.failure_groups(2, middle, wanted, 10, ROWS)) < 5 * ROWS
        assert rows_read(store, lambda wanted=wanted: store.dead_page(2, middle, wanted, 10, ROWS)) < 5 * ROWS
    assert store.mismatches == 0
    store.close()
