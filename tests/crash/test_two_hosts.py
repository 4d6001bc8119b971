"""Promise 6 and the standby: two hosts on the same shards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

from foqs.client.items import ItemSpec, Lease
from foqs_lab.cluster import HostProcess, Shard, make_shards
from foqs_lab.crash.checker import check, tally
from foqs_lab.crash.clients import NAMESPACE, TOPICS, Crew, Load, Wire, answer_of, drain, put, work
from foqs_lab.crash.history import Answer, Crash, Log, pack, read
from foqs_lab.servers import Kind, SqlEndpoint
from tests.support.waiting import wait_until

SERVES = "shard.serving"
LOST = "shard.lost"
AT_ONCE_S = 15.0
"""A standby asks for the lock five times a second; the rest allows for a machine that stalls."""
TIMEOUT_MS = 30_000
LEASE_MS = 300_000
TTL_MS = 5_000
"""Shorter than `CONFIRM_MS`, and not over before the owner is frozen."""
FREEZES = 500
CONFIRM_MS = 6_000
QUIET_S = 1.0
"""What an owner still does by itself, such as to write leases, it does sooner."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def shards(kind: Kind, request: pytest.FixtureRequest) -> Iterator[list[Shard]]:
    server: SqlEndpoint = request.getfixturevalue(kind)
    made = make_shards([server], 2, f"two_{random.getrandbits(32):08x}")
    yield made
    for shard in made:
        server.drop_database(shard.database)


@pytest.fixture
def first(shards: list[Shard], tmp_path: Path) -> Iterator[HostProcess]:
    """Serves."""
    with HostProcess("first", shards, tmp_path) as host:
        yield host


@pytest.fixture
def second(first: HostProcess, shards: list[Shard], tmp_path: Path) -> Iterator[HostProcess]:
    """Not started."""
    host = HostProcess("second", shards, tmp_path)
    yield host
    host.stop()


def written_leases(port: int, shards: list[Shard], log: Log) -> list[Lease]:
    """Leases of ten items that are in the database."""
    wire = Wire(port, NAMESPACE, timeout_ms=TIMEOUT_MS)
    keys = [f"lease:{n}:{monotonic_ns()}" for n in range(10)]
    put(wire, log, keys, [ItemSpec("leases", pack(key, 10)) for key in keys])
    items = wire.dequeue(["leases"], 10, wait_ms=3_000, lease_ms=LEASE_MS)
    while len(items) < 10:
        items += wire.dequeue(["leases"], 10 - len(items), wait_ms=3_000, lease_ms=LEASE_MS)
    wire.close()

    def all_written() -> bool:
        tokens = ", ".join(str(item.lease) for item in items)
        rows = (shard.server.query(f"SELECT id FROM timer WHERE lease IN ({tokens})", database=shard.database)
                for shard in shards)  # fmt: skip
        return sum(map(len, rows)) == len(items)

    wait_until(all_written, "leases in the database", 30)
    return [Lease(item.id, item.lease) for item in items]


def told(port: int, leases: list[Lease]) -> list[Answer]:
    wire = Wire(port, NAMESPACE, timeout_ms=TIMEOUT_MS)
    answers = [answer_of(outcome) for outcome in wire.ack(leases)]
    wire.close()
    return answers


def everything_refused(port: int, leases: list[Lease]) -> None:
    """A host without shards: every request gets an error that says nothing was done, or nothing to do."""
    wire = Wire(port, NAMESPACE, timeout_ms=TIMEOUT_MS)
    specs = [ItemSpec(TOPICS[0], b"x")] * 3
    for outcomes in (wire.enqueue(specs), wire.ack(leases), wire.nack(leases, delay_ms=0), wire.extend(leases, 60_000)):
        assert {answer_of(outcome) for outcome in outcomes} == {Answer.REFUSED}, outcomes
    assert wire.dequeue([*TOPICS, "leases"], 10, wait_ms=0, lease_ms=LEASE_MS) == []
    wire.close()


def quiet(shards: list[Shard]) -> list[tuple[object, ...]]:
    """Return the shards' rows once their owner has nothing more to move by itself."""
    last: list[tuple[object, ...]] = []
    since = monotonic()

    def unchanged() -> bool:
        nonlocal last, since
        now: list[tuple[object, ...]] = [(owner(shard), checksum(shard)) for shard in shards]
        if now != last or any(_moving(shard) for shard in shards):
            last, since = now, monotonic()
        return monotonic() - since > QUIET_S

    wait_until(unchanged, "a new owner that writes nothing")
    return last


def _moving(shard: Shard) -> int:
    """Rows of `timer` that are due within a minute: delays and short leases."""
    now = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
    ((count,),) = shard.server.query(
        f"SELECT COUNT(*) FROM timer WHERE due < {now} + {LEASE_MS // 5}", database=shard.database
    )
    return int(count)


def test_a_standby_takes_the_shards_of_a_killed_host_at_once(
    first: HostProcess, second: HostProcess, shards: list[Shard], tmp_path: Path
) -> None:
    log = Log(tmp_path / "leases.jsonl")
    leases = written_leases(first.port, shards, log)
    second.launch()
    second.wait_for(f"waiting={len(shards)}")
    assert not second.said(SERVES)
    before = [owner(shard) for shard in shards]
    first.kill()
    killed = monotonic()
    second.wait_for("foqs listening on ")
    took_s = monotonic() - killed
    second.wait_for(SERVES, times=len(shards))
    print(f"serving {took_s:.2f} s after the kill")
    assert took_s < AT_ONCE_S
    assert all(owner(shard)[0] > old[0] for shard, old in zip(shards, before, strict=True))
    wire = Wire(second.port, NAMESPACE, timeout_ms=TIMEOUT_MS)
    assert wire.dequeue(["leases"], 10, wait_ms=0, lease_ms=LEASE_MS) == [], "a written lease survives"
    wire.close()
    assert set(told(second.port, leases)) == {Answer.OK}
    assert not any(shard.rows() for shard in shards)
    assert second.faults() == []


def test_a_living_host_loses_its_shards_to_a_take_over_only(
    first: HostProcess, second: HostProcess, shards: list[Shard], tmp_path: Path
) -> None:
    log = Log(tmp_path / "leases.jsonl")
    leases = written_leases(first.port, shards, log)
    second.launch()
    second.wait_for(f"waiting={len(shards)}")
    second.stop()
    assert set(told(first.port, leases[:1])) == {Answer.OK}, "the first was not disturbed"

    second.start(take_over=True)
    second.wait_for(SERVES, times=len(shards))
    assert set(told(second.port, leases[1:5])) == {Answer.OK}
    held = quiet(shards)
    # An idle owner does not check its epoch. A request makes it check, and gets the right reply.
    first.wait_for(LOST, times=len(shards))
    everything_refused(first.port, leases[5:])
    assert quiet(shards) == held, "the first changed a row"

    second.kill()
    first.wait_for(SERVES, times=2 * len(shards))
    assert set(told(first.port, leases[5:])) == {Answer.OK}
    assert not any(shard.rows() for shard in shards)
    assert first.faults() == second.faults() == []


def test_ttl_spares_items_that_the_replaced_owner_may_lease(
    first: HostProcess, shards: list[Shard], tmp_path: Path
) -> None:
    """The first host has the item in memory and trusts its epoch for `confirm_ms`: the second waits for that time."""
    wire = Wire(first.port, NAMESPACE, timeout_ms=TIMEOUT_MS)
    (item_id,) = wire.enqueue([ItemSpec("t", b"x", ttl_ms=TTL_MS)])
    assert isinstance(item_id, int)
    first.pause()
    began = monotonic()
    second = HostProcess("second", shards, tmp_path, {"host": {"confirm_ms": CONFIRM_MS}})
    second.launch(take_over=True)
    with second:
        wait_until(lambda: not any(shard.rows() for shard in shards), "empty shards", CONFIRM_MS / 1000 + 60)
        assert monotonic() - began > CONFIRM_MS / 1000
    first.resume()
    wire.close()


def test_a_frozen_host_with_an_open_transaction_is_taken_over(
    kind: Kind, first: HostProcess, second: HostProcess, shards: list[Shard], tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    log = Log(tmp_path / "lost.jsonl")
    with Crew([first.port], tmp_path, str(seed), Load()) as crew:
        work(crew, shards, 50)
        frozen_ns = freeze_within_a_transaction(first, crew, shards)
        second.launch()
        second.wait_for(f"waiting={len(shards)}")
        second.stop()

        began = monotonic()
        second.start(take_over=True)
        second.wait_for(SERVES, times=len(shards))
        took_s = monotonic() - began
        held = quiet(shards)
        first.resume()
        first.wait_for(LOST, times=len(shards))
        everything_refused(first.port, [Lease((1 << 48) + 1, 1)])
        assert quiet(shards) == held, "the first changed a row"

        second.kill()
        first.wait_for(SERVES, times=2 * len(shards))
        work(crew, shards, 100)
        # For the checker: between these two moments the owner's memory was lost, as in a crash.
        log.add([Crash(frozen_ns, monotonic_ns(), "host")])
    assert drain(first.port, tmp_path, lambda: not any(shard.rows() for shard in shards), 120)
    events = read(tmp_path)
    print(f"{kind}: seed {seed}: taken over in {took_s:.1f} s (with its start); {tally(events)}")
    assert check(events) == [], f"seed {seed}"
    assert first.faults() == second.faults() == []
    assert took_s < 40


def freeze_within_a_transaction(host: HostProcess, crew: Crew, shards: list[Shard]) -> int:
    """SIGSTOPs `host` while a transaction of its is open at the server (its next step is the host's); the time."""
    server = shards[0].server
    for _ in range(FREEZES):
        frozen_ns = monotonic_ns()
        host.pause()
        ids = ", ".join(str(owner(shard)[2]) for shard in shards)
        sleeping = (
            "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
            f"ON p.id = t.trx_mysql_thread_id WHERE p.id IN ({ids}) AND p.command = 'Sleep' AND t.trx_rows_modified > 0"
        )
        if server.query(sleeping)[0][0]:
            return frozen_ns
        host.resume()
        work(crew, shards, 1)
    raise AssertionError(f"{FREEZES} freezes, and none within a transaction")


def owner(shard: Shard) -> tuple[int, int, int]:
    """(epoch, seq, connection id) of the `shard` row: seq grows with every transaction of the owner."""
    columns = "SELECT epoch, seq, connection_id FROM shard WHERE one = 1"
    epoch, seq, connection = shard.server.query(columns, database=shard.database)[0]
    return int(epoch), int(seq), int(connection)


def checksum(shard: Shard) -> tuple[object, ...]:
    """Changes when any row does."""
    tables = ("item", "ready", "timer", "expiry", "lane", "shard")
    statement = f"CHECKSUM TABLE {', '.join(tables)}"
    return tuple(row[1] for row in shard.server.query(statement, database=shard.database))
