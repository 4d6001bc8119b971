"""Settling by seq: the owner's connections are cut at random, also in the middle of a commit, while load runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from foqs.client.items import ItemSpec
from foqs_lab.cluster import HostProcess, Shard, make_shards
from foqs_lab.crash.checker import check, tally
from foqs_lab.crash.clients import Crew, Load, Wire, drain, work
from foqs_lab.crash.history import read
from foqs_lab.servers import Kind, SqlEndpoint
from tests.admin.scraping import Scrape

CUTS = 60
MOST_CUTS = 600
"""If none met a commit before."""
# A short pause after a lost connection leaves time for more of them. A server that only stalls, such as for its disk,
# has no outcome that is unknown.
SETTINGS = {"breaker": {"pause_ms": 20, "hang_ms": 30_000}}


@pytest.fixture
def shards(kind: Kind, request: pytest.FixtureRequest) -> Iterator[list[Shard]]:
    server: SqlEndpoint = request.getfixturevalue(kind)
    made = make_shards([server], 3, f"cut_{random.getrandbits(32):08x}")
    yield made
    for shard in made:
        server.drop_database(shard.database)


@pytest.mark.timeout(400)
def test_cut_connections_lose_and_double_nothing(kind: Kind, shards: list[Shard], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    rng = random.Random(seed)
    # Long leases of few items: nothing but a lie brings an item back. A client times out long after its reply is due.
    load = Load(forgotten=0, acked_late=0, nacked=0, timeout_ms=30_000)
    with HostProcess("host", shards, tmp_path, SETTINGS) as host:
        with Crew([host.port], tmp_path, str(seed), load) as crew:
            cuts = 0
            while cuts < CUTS or (cuts < MOST_CUTS and not in_doubt(host)):
                work(crew, shards, rng.randint(1, 60))
                cut(rng.choice(shards))
                cuts += 1
            work(crew, shards, 300)
        assert drain(host.port, tmp_path, lambda: not any(shard.rows() for shard in shards), 120)
        host.stop()
        faults, unsettled = host.faults(), host.counted("unsettled_transactions")
    events = read(tmp_path)
    counts = tally(events)
    print(f"{kind}: seed {seed}: {cuts} cuts, {unsettled} transactions in doubt; {counts}")
    assert check(events) == [], f"seed {seed}"
    assert faults == []
    assert counts.enqueue_unknown == 0, "unknown outcomes are settled long before a client times out"
    assert unsettled > 0, "no cut met a commit"


def test_the_remaining_items_are_reported(shards: list[Shard], tmp_path: Path) -> None:
    first, *others = shards
    with HostProcess("host", [first], tmp_path) as host:
        wire = Wire(host.port, "test", timeout_ms=30_000)
        (item_id,) = wire.enqueue([ItemSpec("t", b"x", delay_ms=3_600_000)])
        wire.close()
        host.stop()
    item, timer = first.left()
    assert f"has {item_id} in item, at " in item and f"has {item_id} in timer, at " in timer
    assert [shard.left() for shard in others] == [[], []]


def in_doubt(host: HostProcess) -> float:
    """Transactions so far."""
    return Scrape(("127.0.0.1", host.admin_port)).sum("foqs_transactions_unsettled_total")


def cut(shard: Shard) -> None:
    """End every connection to the shard's database: the owner has one."""
    rows = shard.server.query("SELECT id FROM information_schema.processlist WHERE db = %s", shard.database)
    for (connection_id,) in rows:
        with suppress(pymysql.MySQLError):  # the connection has ended
            shard.server.query(f"KILL {connection_id:d}")
