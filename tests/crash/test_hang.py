"""Promise 5 and the breaker: one of two database servers hangs (SIGSTOP), which holds up its own shards only."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest

from foqs.client.items import Item, ItemSpec, Lease
from foqs.errors import Code, FoqsError
from foqs.idl import idl
from foqs.ids import shard_of
from foqs_lab.cluster import HostProcess, make_shards
from foqs_lab.crash.checker import check
from foqs_lab.crash.clients import NAMESPACE, TOPICS, Wire, ack, drain, put, take
from foqs_lab.crash.history import NS_PER_MS, Ack, Answer, Log, pack, read
from foqs_lab.servers import Kind, ServerSettings
from tests.api.wire import Wire as ServiceWire
from tests.api.wire import spec
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.conftest import NewServer

HANG_S = 12.0
NOTICED_MS = 1_500
"""The breaker opens when a trip takes a second; until then an enqueue may be given to a shard that hangs."""
QUICK_MS = 3_000
"""Limit for a request to a good shard: a quarter of the hang, which covers the stalls of a busy machine."""
MOSTLY_MS = 1_000
"""Limit for nine of ten requests, which typically take some milliseconds."""
TIMEOUT_MS = 5_000
LEASE_MS = 600_000
PROBED_MS = 20_000
"""The lease of a prober's item: an item whose ack was refused in the hang is delivered again, to the final drain."""
HELD = 30
ENOUGH = 20


Call = tuple[int, float, str, Answer | None]
"""began ns, took ms, what, answer"""


class Prober(threading.Thread):
    """Enqueues one item, dequeues one, acks it, over and over."""

    def __init__(self, name: str, port: int, folder: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.calls: list[Call] = []
        self.stopping = threading.Event()
        self._log = Log(folder / f"{name}.jsonl")
        self._wire = Wire(port, NAMESPACE, timeout_ms=TIMEOUT_MS)

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            key = f"{self.name}:{number}"
            began = monotonic_ns()
            put(self._wire, self._log, [key], [ItemSpec(TOPICS[0], pack(key, 100))])
            self._took(began, "enqueue")
            began = monotonic_ns()
            items = take(self._wire, self._log, TOPICS[:1], 1, lease_ms=PROBED_MS, wait_ms=0)
            self._took(began, "dequeue")
            for item in items or ():
                began = monotonic_ns()
                (acked,) = ack(self._wire, self._log, [Lease(item.id, item.lease)])
                self._took(began, f"ack {shard_of(item.id)}", acked.answer)
        self._wire.close()

    def _took(self, began: int, what: str, answer: Answer | None = None) -> None:
        self.calls.append((began, (monotonic_ns() - began) / NS_PER_MS, what, answer))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("io_timeout_ms", [60_000, 3_000], ids=["hang-is-shorter", "hang-is-longer"])
def test_a_hanging_database_holds_up_its_own_shards_only(
    kind: Kind, new_server: NewServer, tmp_path: Path, io_timeout_ms: int
) -> None:
    """Whether the hang ends before or after the host gives the connection up (`store.io_timeout_ms`)."""
    settings = ServerSettings(buffer_pool_bytes=64 << 20)
    good, hung = new_server(kind, settings), new_server(kind, settings)
    shards = make_shards([good, hung], 2, "hang")
    hung_shards = {shard.number for shard in shards if shard.server is hung}
    log = Log(tmp_path / "held.jsonl")
    with HostProcess("host", shards, tmp_path, {"store": {"io_timeout_ms": io_timeout_ms}}) as host:
        wire = Wire(host.port, NAMESPACE, timeout_ms=TIMEOUT_MS)
        held = [Lease(item.id, item.lease) for item in hold(wire, log)]
        on_hung = [lease for lease in held if shard_of(lease.id) in hung_shards]
        on_good = [lease for lease in held if shard_of(lease.id) not in hung_shards]
        probers = [Prober(f"prober-{n}", host.port, tmp_path) for n in range(2)]
        for prober in probers:
            prober.start()
        hung.pause()
        paused_ns = monotonic_ns()
        try:
            acks = acks_in_the_hang(wire, log, on_hung, on_good)
            mixed = [on_hung[-1], on_good[-1]]
            answers = [event.answer for event in ack(wire, log, mixed)]
            assert answers[0] in (Answer.UNKNOWN, Answer.REFUSED) and answers[1] is Answer.OK

            def to_good() -> list[Call]:
                begun_ns = paused_ns + NOTICED_MS * NS_PER_MS
                calls = [call for prober in probers for call in list(prober.calls) if call[0] > begun_ns]
                return [call for call in calls if call[2] not in {f"ack {number}" for number in hung_shards}]

            # A breaker that has opened at last keeps everybody away: what follows is for the good shards.
            while (
                monotonic_ns() < paused_ns + HANG_S * 1_000 * NS_PER_MS
                or sum(call[2].startswith("ack") for call in to_good()) <= ENOUGH
            ):
                single(wire, log)
            during = to_good()
        finally:
            hung.resume()
        resumed = monotonic()
        asked = {Lease(event.id, event.lease): event.answer for event in acks}
        try:
            wait_until(lambda: acked_at_last(wire, log, asked), "acks for the server that hung, taken again")
            again_s = monotonic() - resumed
        finally:
            for prober in probers:
                prober.stopping.set()
                prober.join()
        rest = dict.fromkeys([*on_hung, *on_good], Answer.UNKNOWN)
        wait_until(lambda: acked_at_last(wire, log, rest), lambda: rest)
        assert drain(host.port, tmp_path, lambda: not any(shard.rows() for shard in shards), 120)
        assert host.faults() == []
    assert check(read(tmp_path)) == []
    took_ms = sorted(call[1] for call in during)
    mostly_ms, slowest = took_ms[len(took_ms) * 9 // 10], max(during, key=lambda call: call[1])
    slowest_text = f"nine of ten in {mostly_ms:.0f} ms, slowest {slowest[1]:.0f} ms ({slowest[2]})"
    print(f"{kind}: {len(during)} calls in the hang, {slowest_text}; acks again after {again_s:.1f} s")
    assert slowest[1] < QUICK_MS, slowest_text
    assert mostly_ms < MOSTLY_MS, slowest_text
    assert all(call[1] < TIMEOUT_MS + 2_500 for prober in probers for call in prober.calls)
    assert again_s < 20


@pytest.mark.timeout(300)
def test_a_host_starts_while_a_database_hangs(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    """It serves the shards whose database answers, and each other shard once its database answers. A first start waits
    for all shards, as each may have settings."""
    small = ServerSettings(buffer_pool_bytes=64 << 20)
    servers = [new_server(kind, small), new_server(kind, small)]
    shards = make_shards(servers, 1, "start")
    timeout_ms = 60_000
    settings = {"store": {"io_timeout_ms": timeout_ms, "connect_timeout_ms": timeout_ms}}
    host = HostProcess("host", shards, tmp_path, settings)
    log = Log(tmp_path / "start.jsonl")
    with HostProcess("before", shards, tmp_path, settings) as before:
        before.wait_for("shard.serving", times=2)
    servers[1].pause()
    began = monotonic()
    try:
        with host:
            took_s = monotonic() - began
            wire = Wire(host.port, NAMESPACE, timeout_ms=TIMEOUT_MS)
            single(wire, log)
            assert host.said("shard.serving") == 1
            servers[1].resume()
            host.wait_for("shard.serving", times=2)
    finally:
        servers[1].resume()
    print(f"{kind}: listening after {took_s:.1f} s")
    assert took_s * 1_000 < timeout_ms / 2, "less than the time-out of the store"


@pytest.mark.timeout(300)
def test_keys_of_a_hanging_database_are_refused_at_once(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    """Except those that a transaction may have: their outcome is unknown soon after, and found out when it answers."""
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 1, "keys")

    def ask(wire: ServiceWire, key: str) -> None:
        context = idl.RequestContext(timeout_ms=120_000)
        wire.send_call("Enqueue", ns=NAMESPACE, items=[spec(TOPICS[0], dedup_key=key)], context=context)

    with HostProcess("host", shards, tmp_path, {"store": {"io_timeout_ms": 240_000}}) as host:
        first, others = ServiceWire(("127.0.0.1", host.port)), ServiceWire(("127.0.0.1", host.port))

        def answer(wire: ServiceWire) -> Any:
            return wire.receive("Enqueue").outcomes[0]

        def stores() -> bool:
            ask(first, "before")
            return answer(first).error is None

        wait_until(stores, "an answer of the owners of slots")
        server.pause()
        try:
            ask(first, "sent")
            others.server_has_seen(first)
            for n in range(20):
                ask(others, f"later-{n}")
                error = answer(others).error
                assert (error.code, error.retry_after_ms > 0) == (Code.UNAVAILABLE, True), error
            assert answer(first).error.code == Code.OUTCOME_UNKNOWN
        finally:
            server.resume()
        stored: list[Any] = []

        def stores_again() -> bool:
            ask(first, "sent")
            stored.append(answer(first))
            return stored[-1].error is None

        wait_until(stores_again, "the database answers again")
        ask(first, "sent")
        again = answer(first)
        assert (again.id, again.duplicate) == (stored[-1].id, True)


def hold(wire: Wire, log: Log) -> list[Item]:
    """Leases items, at least HELD of each shard: the host places a request at random, so it is asked until all have."""
    placed: Counter[int] = Counter()

    def put_some() -> bool:
        keys = [f"held:{placed.total()}:{n}" for n in range(10)]
        outcomes = put(wire, log, keys, [ItemSpec(TOPICS[1], pack(key, 100)) for key in keys])
        placed.update(shard_of(outcome) for outcome in outcomes if isinstance(outcome, int))
        return len(placed) == 4 and min(placed.values()) >= HELD

    wait_until(put_some, lambda: placed)
    items: list[Item] = []
    wait_until(lambda: items.extend(taken(wire, log)) or len(items) >= placed.total(), lambda: (len(items), placed))
    assert Counter(shard_of(item.id) for item in items) == placed
    return items


def taken(wire: Wire, log: Log) -> list[Item]:
    return take(wire, log, TOPICS[1:2], 1_000, lease_ms=LEASE_MS, wait_ms=100) or []


def acks_in_the_hang(wire: Wire, log: Log, on_hung: list[Lease], on_good: list[Lease]) -> list[Ack]:
    """Acks of items whose database hangs get a reply soon that is not OK; all other acks are done."""
    by_shard: dict[int, list[Lease]] = defaultdict(list)
    for lease in on_hung:
        by_shard[shard_of(lease.id)].append(lease)
    began = monotonic()
    # Of each shard: one that is asked for nothing now seems to be good until its first request.
    acks = ack(wire, log, [lease for leases in by_shard.values() for lease in leases[:10]])
    assert {event.answer for event in acks} <= {Answer.UNKNOWN, Answer.REFUSED}
    assert (monotonic() - began) * 1000 < TIMEOUT_MS, "no request waits for a database that hangs"
    for lease in on_good[:30]:
        began = monotonic()
        (event,) = ack(wire, log, [lease])
        assert event.answer is Answer.OK
        assert (monotonic() - began) * 1000 < QUICK_MS
    return acks


def single(wire: Wire, log: Log) -> None:
    """An enqueue of one item when the breaker is open: stored, and soon."""
    began = monotonic_ns()
    key = f"single:{began}"
    (outcome,) = put(wire, log, [key], [ItemSpec(TOPICS[0], pack(key, 100))])
    assert not isinstance(outcome, FoqsError), outcome
    assert (monotonic_ns() - began) / NS_PER_MS < QUICK_MS


def acked_at_last(wire: Wire, log: Log, asked: dict[Lease, Answer]) -> bool:
    """Ack again. A refused ack changed nothing and must answer OK; an item with an unknown outcome may be gone."""
    left = [lease for lease, answer in asked.items() if answer in (Answer.UNKNOWN, Answer.REFUSED)]
    for lease, event in zip(left, ack(wire, log, left), strict=True):
        if event.answer is Answer.NOT_FOUND:
            assert asked[lease] is Answer.UNKNOWN, (lease, event)
        # Once unknown, always unknown: a later "nothing was changed" is of that later ack only.
        if asked[lease] is not Answer.UNKNOWN or event.answer is not Answer.REFUSED:
            asked[lease] = event.answer
    return all(answer in (Answer.OK, Answer.NOT_FOUND) for answer in asked.values())
