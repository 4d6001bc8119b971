"""A connection that is cut within any packet of a transaction on the event loop: what `reconnect` says is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import make_url

from foqs.rows import Batch
from foqs.store.maintenance import create_schema
from foqs.store.protocol import CommitUnknown, StoreDown
from tests.conftest import SHARD_KINDS
from tests.store.contract import LANE
from tests.store.cutting_relay import CuttingRelay, Side
from tests.store.loop_store import LoopStore
from tests.store.shards import NUMBER, new_item
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:], indirect=True)
COMMIT_BYTES = 11
"""The packet of COMMIT and the one that answers it."""


class Rig:
    """A store behind a relay. Its items are inserted one a transaction."""

    def __init__(self, url: str) -> None:
        create_schema(url, NUMBER)
        parsed = make_url(url)
        assert parsed.port is not None
        self.relay = CuttingRelay(parsed.port)
        self.store = LoopStore(
            parsed.set(port=self.relay.port).render_as_string(hide_password=False), shard=NUMBER, io_timeout_s=20.0
        )
        self.store.open("owner", take_over=False)
        self.store.commit(Batch(lanes_new=[LANE], next_number=1))
        self.items = 10_000
        self._wait_alone()

    def _wait_alone(self) -> None:
        """Wait until no byte of an earlier connection can be counted or cut."""
        wait_until(lambda: self.relay.connections == 1, lambda: f"{self.relay.connections} connections")

    def insert(self) -> int:
        self.items += 1
        item = new_item(self.items)
        self.store.commit(Batch(inserts=[item], next_number=100_000))
        return item.id

    def is_stored(self) -> bool:
        return len(self.store.bodies([new_item(self.items).id])) == 1

    def settled(self) -> bool:
        found: list[bool] = []

        def reconnects() -> bool:
            try:
                found.append(self.store.reconnect())
            except StoreDown:
                return False
            return True

        wait_until(reconnects, "the owner has its shard again")
        self._wait_alone()
        return found[0]

    def close(self) -> None:
        self.store.close()
        self.store.transactions.close()
        self.store.loop.close()
        self.relay.close()


@pytest.fixture
def rig(shard_url: str) -> Iterator[Rig]:
    made = Rig(shard_url)
    yield made
    made.close()


def bytes_of_an_insert(rig: Rig) -> dict[Side, int]:
    rig.relay.count()
    rig.insert()
    return dict(rig.relay.passed)


def stored_after_a_cut(rig: Rig) -> bool:
    """Insert an item over the connection that is cut; return whether it is there, which `reconnect` must know."""
    with pytest.raises((StoreDown, CommitUnknown)) as lost:
        rig.insert()
    settled = rig.settled()
    assert settled is rig.is_stored()
    assert not settled or lost.type is CommitUnknown
    return settled


def test_a_cut_at_any_byte_of_the_replies(rig: Rig) -> None:
    """The server runs the statements, and COMMIT if it was sent."""
    total = bytes_of_an_insert(rig)[Side.REPLY]
    assert total > 5 * COMMIT_BYTES, "BEGIN, the fence, which has a text, two inserts and COMMIT"
    stored = []
    for at in range(total):
        rig.relay.cut_after(Side.REPLY, at)
        stored.append(stored_after_a_cut(rig))
    assert all(stored[-COMMIT_BYTES:])


def test_a_cut_at_any_packet_of_the_requests(rig: Rig) -> None:
    """A server that misses one byte of COMMIT does not run it."""
    total = bytes_of_an_insert(rig)[Side.REQUEST]
    first = total - COMMIT_BYTES
    for at in (*range(8), *range(8, first, first // 8), *range(first - 3, total)):
        rig.relay.cut_after(Side.REQUEST, at)
        assert not stored_after_a_cut(rig), at
    rig.insert()
    assert rig.is_stored()
