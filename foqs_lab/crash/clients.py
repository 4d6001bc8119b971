"""Producers and consumers that log every reply, and misbehave on purpose.

Consumers ack most of what they get; some items they nack, forget, or ack long after the lease; and they ack with
tokens that are wrong. Everything random comes from the seed. A `Wire` asks once: no pool, no second try, so that each
answer is one event of the history. It is the client library's own connection and codec.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

from foqs.client import methods
from foqs.client._sync.connection import Connection
from foqs.client.items import Delivery as Policy
from foqs.client.items import Item, ItemSpec, Lease, Leased
from foqs.client.items import Nack as NackOfItem
from foqs.client.routes import Address
from foqs.errors import FoqsError, LostReply, NotFound, NotSent, OutcomeUnknown, StaleLease, item_error
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.wire.client_codec import RemoteMethod
from foqs_lab.cluster import Shard
from foqs_lab.crash.history import (
    NS_PER_MS,
    Ack,
    Answer,
    Delivery,
    Dequeue,
    Enqueue,
    Event,
    Log,
    Nack,
    Step,
    key_of,
    pack,
)

_GRACE_MS = 3_000
"""Time that the client waits for a reply, beyond the time-out in the request."""


def answer_of(outcome: object) -> Answer:
    """What an outcome (an id, None, or an error) says of the change."""
    if not isinstance(outcome, FoqsError):
        return Answer.OK
    if isinstance(outcome, OutcomeUnknown):
        return Answer.UNKNOWN
    if isinstance(outcome, StaleLease):
        return Answer.STALE
    return Answer.NOT_FOUND if isinstance(outcome, NotFound) else Answer.REFUSED


class Wire:
    """A connection for one thread, opened when needed. `timeout_ms` is the time-out in the request.

    Every call answers one outcome an item: a request that failed as a whole is the outcome of each.
    """

    def __init__(self, port: int, namespace: str, *, timeout_ms: int) -> None:
        self._address = Address("127.0.0.1", port)
        self._namespace = namespace
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None
        self._sequence = 0

    def enqueue(self, specs: Sequence[ItemSpec]) -> list[int | FoqsError]:
        """Ids or errors."""
        return self._each(methods.ENQUEUE, idl.EnqueueRequest(ns=self._namespace, items=specs), len(specs))

    def dequeue(self, topics: Sequence[str], count: int, *, wait_ms: int, lease_ms: int) -> list[Item]:
        """Raises FoqsError; LostReply when items may have been leased."""
        return self.dequeue_told(topics, count, wait_ms=wait_ms, lease_ms=lease_ms)[0]

    def dequeue_told(
        self, topics: Sequence[str], count: int, *, wait_ms: int, lease_ms: int
    ) -> tuple[list[Item], tuple[int, ...]]:
        """Items, and the ids of which the answer is not sure. Raises FoqsError; LostReply when items may have been
        leased."""
        wants = [idl.TopicCount(topic=topic, count=count) for topic in topics]
        request = idl.DequeueRequest(ns=self._namespace, wants=wants, wait_ms=wait_ms, lease_ms=lease_ms)
        response = self._ask(methods.DEQUEUE, request, wait_ms)
        return response.items or [], tuple(response.doubtful or ())

    def ack_and_dequeue(
        self, items: Sequence[Leased], topics: Sequence[str], count: int, *, lease_ms: int
    ) -> tuple[list[FoqsError | None], list[Item], tuple[int, ...], FoqsError | None]:
        """Outcomes of the acks; items, the ids of which the answer is not sure, and the error of the dequeue. Raises
        FoqsError; LostReply when each ack may have been carried out, and items may have been leased."""
        acks = [_ack_of(item) for item in items]
        wants = [idl.TopicCount(topic=topic, count=count) for topic in topics]
        request = idl.AckAndDequeueRequest(ns=self._namespace, acks=acks, wants=wants, lease_ms=lease_ms)
        response = self._ask(methods.ACK_AND_DEQUEUE, request)
        if len(response.outcomes) != len(acks):
            raise AssertionError(f"{len(response.outcomes)} outcomes for {len(acks)} items")
        outcomes = [self._outcome(methods.ACK, outcome) for outcome in response.outcomes]
        error = None if response.error is None else item_error(response.error)
        return outcomes, response.items or [], tuple(response.doubtful or ()), error

    def ack(self, items: Sequence[Leased]) -> list[FoqsError | None]:
        acks = [_ack_of(item) for item in items]
        return self._each(methods.ACK, idl.AckRequest(items=acks), len(acks))

    def nack(
        self, items: Sequence[Leased], *, delay_ms: int | None = None, failed: bool = False, reject: bool = False
    ) -> list[FoqsError | None]:
        """The reason of a failure is its lease, which names it as the result names an ack."""
        reasons = [str(item.lease) if failed or reject else None for item in items]
        nacks = [
            NackOfItem.of(item, delay_ms=delay_ms, failed=failed, reject=reject, reason=reason)
            for item, reason in zip(items, reasons, strict=True)
        ]
        return self._each(methods.NACK, idl.NackRequest(items=nacks), len(nacks))

    def extend(self, items: Sequence[Leased], lease_ms: int) -> list[FoqsError | None]:
        extensions = [idl.ExtendItem(id=item.id, lease=item.lease, lease_ms=lease_ms) for item in items]
        return self._each(methods.EXTEND, idl.ExtendLeaseRequest(items=extensions), len(extensions))

    def give_checkpoints(self, items: Sequence[Leased], checkpoint: bytes) -> list[FoqsError | None]:
        """The answers come when it is committed."""
        given = [idl.ExtendItem(item.id, item.lease, checkpoint=checkpoint, durable=True) for item in items]
        return self._each(methods.EXTEND, idl.ExtendLeaseRequest(items=given), len(given))

    def result(self, item_id: int, *, wait_ms: int) -> Any:
        """Return the response to GetResult. Raises FoqsError."""
        return self._ask(methods.GET_RESULT, idl.GetResultRequest(item_id, wait_ms), wait_ms)

    def delete(self, ids: Sequence[int]) -> list[FoqsError | None]:
        return self._each(methods.DELETE, idl.DeleteItemsRequest(ids=ids), len(ids))

    def cancel(self, dedup_key: str) -> FoqsError | None:
        """Remove the item that has the key, also a leased one."""
        try:
            response = self._ask(methods.CANCEL, idl.CancelItemRequest(self._namespace, dedup_key, leased=True))
        except FoqsError as error:
            return error
        return None if response.removed else NotFound("the item has ended")

    def redrive(self, topic: str, item_id: int) -> FoqsError | None:
        """Return a dead letter of the topic to the topic that it came from."""
        only = idl.FailureFilter(item_id=item_id)
        try:
            response = self._ask(methods.REDRIVE, idl.RedriveItemsRequest(self._namespace, topic, filter=only))
        except FoqsError as error:
            return error
        if response.at_most != response.at_least or response.missing_shards:
            return OutcomeUnknown("the owner of a shard has failed")
        return None if response.at_least else NotFound("no such dead letter")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _each(self, method: RemoteMethod, request: Any, count: int) -> list[Any]:
        try:
            outcomes = self._ask(method, request).outcomes
        except FoqsError as error:
            return [error] * count
        if len(outcomes) != count:
            raise AssertionError(f"{len(outcomes)} outcomes for {count} items")
        return [self._outcome(method, outcome) for outcome in outcomes]

    def _outcome(self, method: RemoteMethod, outcome: Any) -> Any:
        if outcome.error is not None:
            return item_error(outcome.error)
        return outcome.id if method is methods.ENQUEUE else None

    def _ask(self, method: RemoteMethod, request: Any, wait_ms: int = 0) -> Any:
        request.context = idl.RequestContext(timeout_ms=self._timeout_ms)
        self._sequence += 1
        request_frame = method.encode(request, self._sequence)
        deadline = monotonic() + (self._timeout_ms + wait_ms + _GRACE_MS) / 1000
        try:
            if self._connection is None or not self._connection.usable():
                self.close()
                self._connection = Connection(self._address, 1.0)
            frame = self._connection.exchange(request_frame, deadline)
        except (NotSent, LostReply):
            self.close()
            raise
        return method.decode(frame, self._sequence)


def _ack_of(item: Leased) -> Any:
    """Return an ack with its lease as the result: that names the ack."""
    return idl.AckItem(item.id, item.lease, b"%d" % item.lease)


NAMESPACE = "crash"
TOPICS = ("a", "b", "once")
_ASKED = (("a", "b"), ("a", "b"), ("b", "a"), ("once",), ("once", "a"))
"""What consumers ask for. At-most-once items are in a topic of their own: their leases are committed first, and a
consumer acks nothing while it waits for that commit."""
LEASE_MS = 1_500
RECOVERY_S = 60.0
"""Time after a fault within which the clients must store and ack items of every shard again."""
_DRAIN_TIMEOUT_MS = 30_000
_WAIT_MS = 300
_PAUSE_S = 0.02
"""After a request that failed as a whole: a refused connection is refused at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """Producers are faster, so `backlog` is about how many items wait; shares are of all items. `timeout_ms` is
    for a request: a client stays with a dead or hanging host for this time."""

    producers: int = 3
    consumers: int = 3
    batch: int = 20
    backlog: int = 1_000
    at_most_once: float = 0.1
    delayed: float = 0.1
    nacked: float = 0.04
    stepped: float = 0.5
    forgotten: float = 0.02
    acked_late: float = 0.04
    timeout_ms: int = 4_000


class Progress:
    """Counts the stored and the acked items of each shard; threads can wait for a number. Thread-safe."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._stored: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()
        self._waiting: dict[int, int] = {}
        """Items that were stored and have not ended, with the time of that news (ns)."""
        self._early: set[int] = set()
        """Items whose end was heard of first."""

    def add(self, *, stored: Sequence[int] = (), ended: Sequence[int] = ()) -> None:
        """Takes ids."""
        now_ns = monotonic_ns()
        with self._change:
            self._stored.update(map(shard_of, stored))
            self._ended.update(map(shard_of, ended))
            self._waiting.update((one, now_ns) for one in stored if one not in self._early)
            self._early.difference_update(stored)
            self._early.update(one for one in ended if self._waiting.pop(one, None) is None)
            self._change.notify_all()

    def forget(self, shards: Collection[int], since_ns: int) -> None:
        """Count the items of `shards` that were stored since then as ended: the database may have lost them."""
        with self._change:
            lost = [one for one, at_ns in self._waiting.items() if at_ns >= since_ns and shard_of(one) in shards]
            for one in lost:
                del self._waiting[one]
            self._change.notify_all()

    def wait_below(self, backlog: int, timeout_s: float) -> bool:
        """Until at most `backlog` items are stored and not ended; False when that took longer."""
        with self._change:
            return self._change.wait_for(lambda: len(self._waiting) <= backlog, timeout_s)

    def wait_more(self, items: int, shards: Sequence[int], timeout_s: float) -> bool:
        """Wait until `items` more are stored and `items` more acked on each of `shards`. False after `timeout_s`."""
        with self._change:
            goals = [(counts, shard, counts[shard] + items) for counts in self._both for shard in shards]
            return self._change.wait_for(lambda: all(counts[shard] >= goal for counts, shard, goal in goals), timeout_s)

    @property
    def _both(self) -> tuple[Counter[int], Counter[int]]:
        return self._stored, self._ended

    def __repr__(self) -> str:
        return f"Progress(stored by shard {dict(self._stored)}, ended {dict(self._ended)})"


class _Client(threading.Thread):
    def __init__(self, name: str, port: int, folder: Path, seed: str, progress: Progress, load: Load) -> None:
        super().__init__(name=name, daemon=True)
        self.error: Exception | None = None
        self._rng = random.Random(f"{seed}/{name}")
        self._load = load
        self._progress = progress
        self._stopping = threading.Event()
        self._log = Log(folder / f"{name}.jsonl")
        self._wire = Wire(port, NAMESPACE, timeout_ms=load.timeout_ms)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except Exception as error:  # noqa: BLE001 - `Crew.stop` raises it
            self.error = error
        finally:
            self._wire.close()
            self._log.close()

    def _step(self) -> None:
        raise NotImplementedError

    def _pause_when_refused(self, outcomes: Sequence[object]) -> None:
        if all(isinstance(outcome, FoqsError) for outcome in outcomes):
            self._stopping.wait(_PAUSE_S)


class Producer(_Client):
    """`kind` is part of the keys of its items."""

    kind = ""
    _number = 0

    def _step(self) -> None:
        if self._progress.wait_below(self._load.backlog, 0.2):
            self._make()

    def _make(self) -> dict[str, int]:
        """Enqueue some items. Return the ids in the answers, by the keys of their items."""
        keys, specs = [], []
        for _ in range(self._rng.randint(1, 3 * self._load.batch)):
            self._number += 1
            keys.append(f"{self.name}{self.kind}:{self._number}")
            specs.append(self._spec(keys[-1]))
        outcomes = put(self._wire, self._log, keys, specs)
        made = {key: outcome for key, outcome in zip(keys, outcomes, strict=True) if isinstance(outcome, int)}
        self._progress.add(stored=[*made.values()])
        self._pause_when_refused(outcomes)
        return made

    def _spec(self, key: str) -> ItemSpec:
        rng, load = self._rng, self._load
        once = rng.random() < load.at_most_once
        return ItemSpec(
            "once" if once else rng.choice(("a", "b")),
            pack(key, rng.choice((0, 100, 100, 100, 5_000))),
            priority=rng.randint(-5, 5),
            delay_ms=rng.randint(1, 400) if rng.random() < load.delayed else None,
            delivery=Policy.AT_MOST_ONCE if once else Policy.AT_LEAST_ONCE,
        )


class Consumer(_Client):
    asked: Sequence[Sequence[str]] = _ASKED

    def __init__(self, name: str, port: int, folder: Path, seed: str, progress: Progress, load: Load) -> None:
        super().__init__(name, port, folder, seed, progress, load)
        self._late: deque[tuple[int, Lease]] = deque()  # what to ack at which time, after its lease or about then
        self._once: set[int] = set()
        self._next: list[Lease] = []  # to ack in one request with the next dequeue

    def _step(self) -> None:
        rng, load = self._rng, self._load
        topics, count = rng.choice(self.asked), rng.randint(1, load.batch)
        items = self._take(topics, count)
        if items is None:
            self._stopping.wait(_PAUSE_S)
            return
        now, acks, nacks, steps = monotonic_ns(), list[Lease](), list[Item](), list[Lease]()
        # However their lease ends, they are gone then, often without an ack that says so.
        once = [item.id for item in items if item.delivery == Policy.AT_MOST_ONCE]
        self._once.update(once)
        self._progress.add(ended=once)
        for item in items:
            luck = rng.random()
            lease = Lease(item.id, item.lease)
            comes_again = luck < load.forgotten + load.acked_late + load.nacked and rng.random() < load.stepped
            steps += [lease] * comes_again
            if luck < load.forgotten:
                continue
            if luck < load.forgotten + load.acked_late:
                self._late.append((now + (LEASE_MS + rng.randint(-200, 2_000)) * NS_PER_MS, lease))
            elif luck < load.forgotten + load.acked_late + load.nacked:
                nacks.append(item)
            else:
                acks.append(lease)
        self._give_checkpoints(steps)
        self._ack_wrongly(items)
        if rng.random() < 0.3:
            self._next = acks
        else:
            self._ack(acks)
        if nacks:
            self._nack(nacks)
        if acks and rng.random() < 0.1:
            self._ack([rng.choice(acks)])  # once more
        while self._late and self._late[0][0] <= monotonic_ns():
            self._ack([self._late.popleft()[1]])

    def _take(self, topics: Sequence[str], count: int) -> list[Item] | None:
        if not self._next:
            return take(self._wire, self._log, topics, count, lease_ms=LEASE_MS, wait_ms=_WAIT_MS)
        leases, self._next = self._next, []
        acked, items = ack_and_take(self._wire, self._log, leases, topics, count, lease_ms=LEASE_MS)
        self._acked(acked)
        return items

    def _ack_wrongly(self, items: Sequence[Item]) -> None:
        if items and self._rng.random() < 0.2:
            item = self._rng.choice(items)
            self._ack([Lease(item.id, item.lease ^ 1 << self._rng.randrange(62))])

    def _ack(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._acked(ack(self._wire, self._log, leases))

    def _acked(self, acked: Sequence[Ack]) -> None:
        ended = [event.id for event in acked if event.answer in (Answer.OK, Answer.UNKNOWN)]
        self._progress.add(ended=[item_id for item_id in ended if item_id not in self._once])

    def _give_checkpoints(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        began = monotonic_ns()
        outcomes = self._wire.give_checkpoints(leases, b"%d" % began)
        ended = monotonic_ns()
        self._log.add(
            Step(began, ended, lease.id, lease.lease, began, answer_of(outcome))
            for lease, outcome in zip(leases, outcomes, strict=True)
        )

    def _nack(self, items: Sequence[Item]) -> None:
        began = monotonic_ns()
        outcomes = self._wire.nack(items, delay_ms=self._rng.choice((0, 0, 100)))
        ended = monotonic_ns()
        self._log.add(
            Nack(began, ended, item.id, item.lease, answer_of(outcome))
            for item, outcome in zip(items, outcomes, strict=True)
        )


def put(wire: Wire, log: Log, keys: Sequence[str], specs: Sequence[ItemSpec]) -> list[int | FoqsError]:
    """Enqueue and log it; `keys` are the keys in the payloads. Return ids or errors."""
    began = monotonic_ns()
    outcomes = wire.enqueue(specs)
    ended = monotonic_ns()
    log.add(
        Enqueue(
            began, ended, key, outcome if isinstance(outcome, int) else 0, answer_of(outcome),
            spec.delivery == Policy.AT_MOST_ONCE,
        )
        for key, spec, outcome in zip(keys, specs, outcomes, strict=True)
    )  # fmt: skip
    return outcomes


def take(wire: Wire, log: Log, topics: Sequence[str], count: int, *, lease_ms: int, wait_ms: int) -> list[Item] | None:
    """Dequeues up to `count` of each topic and logs it; None when there was no answer, or an error."""
    began = monotonic_ns()
    try:
        items, doubtful = wire.dequeue_told(topics, count, wait_ms=wait_ms, lease_ms=lease_ms)
    except FoqsError as error:
        _log_failure(log, began, count * len(topics), error)
        return None
    _log_items(log, began, count * len(topics), items, doubtful, lease_ms)
    return items


def ack(wire: Wire, log: Log, leases: Sequence[Lease]) -> list[Ack]:
    """Ack, log the reply, and return the logged events."""
    began = monotonic_ns()
    return _log_acks(log, began, leases, wire.ack(leases))


def ack_and_take(
    wire: Wire, log: Log, leases: Sequence[Lease], topics: Sequence[str], count: int, *, lease_ms: int
) -> tuple[list[Ack], list[Item] | None]:
    """Ack and take in one request."""
    began = monotonic_ns()
    asked = count * len(topics)
    try:
        outcomes, items, doubtful, error = wire.ack_and_dequeue(leases, topics, count, lease_ms=lease_ms)
    except FoqsError as failed:
        _log_failure(log, began, asked, failed)
        return _log_acks(log, began, leases, [failed] * len(leases)), None
    acked = _log_acks(log, began, leases, outcomes)
    if error is not None:
        _log_failure(log, began, asked, error)
        return acked, None
    _log_items(log, began, asked, items, doubtful, lease_ms)
    return acked, items


def _log_failure(log: Log, began: int, asked: int, error: FoqsError) -> None:
    """Log a dequeue without an answer, or with an error."""
    log.add([Dequeue(began, monotonic_ns(), asked, answered=answer_of(error) is Answer.REFUSED)])


def _log_items(
    log: Log, began: int, asked: int, items: Sequence[Item], doubtful: tuple[int, ...], lease_ms: int
) -> None:
    ended = monotonic_ns()
    dequeues: list[Event] = [Dequeue(began, ended, asked, answered=True, doubtful=doubtful)]
    dequeues += [
        Delivery(
            began, ended, key_of(item.payload), item.id, item.lease, item.attempt, lease_ms, int(item.checkpoint or 0)
        )
        for item in items
    ]
    log.add(dequeues)


def _log_acks(log: Log, began: int, leases: Sequence[Lease], outcomes: Sequence[FoqsError | None]) -> list[Ack]:
    ended = monotonic_ns()
    acks = [
        Ack(began, ended, lease.id, lease.lease, answer_of(outcome))
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]
    log.add(acks)
    return acks


class Crew:
    """Clients of one or more hosts, each of one in turn. `with` starts and stops them, and raises their
    errors."""

    def __init__(
        self, ports: Sequence[int], folder: Path, seed: str, load: Load,
        producers: Sequence[type[Producer]] = (Producer,), consumers: Sequence[type[Consumer]] = (Consumer,),
    ) -> None:  # fmt: skip
        """`producers` and `consumers`: their kinds, in turn."""
        self.progress = Progress()
        kinds: list[tuple[type[_Client], int]] = [(producers[n % len(producers)], n) for n in range(load.producers)]
        kinds += [(consumers[n % len(consumers)], n) for n in range(load.consumers)]
        self._clients: list[_Client] = [
            kind(f"{kind.__name__.lower()}-{n}", ports[n % len(ports)], folder, seed, self.progress, load)
            for kind, n in kinds
        ]

    def __enter__(self) -> Crew:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for client in self._clients:
            client.stop()
        for client in self._clients:
            client.join()
        if kind is None:
            self.raise_errors()

    def raise_errors(self) -> None:
        for client in self._clients:
            if client.error is not None:
                raise client.error


def work(crew: Crew, shards: Sequence[Shard], items: int) -> None:
    """Wait until `items` more were stored and `items` more ended on each shard. Raises TimeoutError."""
    if not crew.progress.wait_more(items, [shard.number for shard in shards], RECOVERY_S):
        crew.raise_errors()
        raise TimeoutError(f"fewer than {items} items were stored and acked on each shard: {crew.progress}")


def drain(
    port: int, folder: Path, is_empty: Callable[[], bool], timeout_s: float, topics: Sequence[str] = TOPICS
) -> bool:
    """Acks all that comes until `is_empty()`; False when that took longer than `timeout_s`."""
    log = Log(folder / "drain.jsonl")
    wire = Wire(port, NAMESPACE, timeout_ms=_DRAIN_TIMEOUT_MS)
    deadline = monotonic_ns() + int(timeout_s * 1000) * NS_PER_MS
    try:
        while monotonic_ns() < deadline:
            items = take(wire, log, topics, 1_000, lease_ms=10_000, wait_ms=100)
            if items:
                ack(wire, log, [Lease(item.id, item.lease) for item in items])
            elif items is not None and is_empty():
                return True
        return False
    finally:
        wire.close()
        log.close()
