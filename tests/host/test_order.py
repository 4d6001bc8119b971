"""Orders of events that are rare, one by one."""

from __future__ import annotations

from foqs.errors import FoqsError
from foqs.store.protocol import RowRejected
from tests.host.laboratory import Laboratory


def test_a_refused_item_does_not_confirm_the_owner() -> None:
    """One that is too large for a packet is refused before the database was asked for anything."""
    lab = Laboratory(1)
    shard, store = lab.host.shards[1], lab.stores[1]
    lab.enqueue()
    lab.settle()
    lab.now_ms += 10_000
    assert not shard.confirmed(lab.now_ms)

    def refuse(batch: object) -> None:
        raise RowRejected("too large")

    commit, store.commit = store.commit, refuse  # type: ignore[method-assign, assignment]
    refused = lab.enqueue(b"too large")
    lab.settle()
    store.commit = commit  # type: ignore[method-assign]
    assert isinstance(refused[0], FoqsError)
    assert not shard.confirmed(lab.now_ms)
