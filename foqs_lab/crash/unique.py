"""Keys that items hold until they start or are done, while the host is killed: whether two items ever had one, or an
item came with an older payload than it had.

Each event says when it began and ended. An item is certainly live, or waiting, from the answer that says so until the
beginning of the first event that may end this. Two such times of items with one key must not overlap. A database that
was put back to an older copy may end all of its items, and bring items back; then these have their keys again.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice, pairwise
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import NamedTuple

from foqs.buffers.held_keys import CLAIM_MS
from foqs.client import Client, DedupUntil, Duplicate, Item, ItemSpec, Nack, OnDuplicate, Replaced
from foqs.errors import FoqsError, OutcomeUnknown
from foqs_lab.cluster import HostProcess, Shard
from foqs_lab.crash.losses import Losses

NAMESPACE = "unique"
ATTEMPTS = 2
LEASE_MS = 1_000
_NS_PER_MS = 1_000_000
_BATCH = 8
_CONSUMERS = 8
_POLICY = json.dumps({"max_attempts": ATTEMPTS, "retry": {"kind": "constant", "first_ms": 0}})
_LIMIT_S = 600.0


class Stored(NamedTuple):
    """An enqueue was answered with a new id."""

    began: int
    ended: int
    key: int
    id: int
    number: int = 0  # of the enqueue


class Changed(NamedTuple):
    """An enqueue was answered with the id of an item that has its payload now."""

    began: int
    ended: int
    key: int
    id: int
    number: int


class Delivered(NamedTuple):
    began: int
    ended: int
    key: int
    id: int
    attempt: int
    number: int = 0  # of the enqueue that brought the payload


class Ended(NamedTuple):
    """An ack, or a nack of the last attempt: whatever was answered, the item may have ended in this time."""

    began: int
    ended: int
    id: int


class Lost(NamedTuple):
    """A request of a dequeue had no answer: items may have been delivered."""

    began: int
    ended: int


Event = Stored | Changed | Delivered | Ended | Lost
Span = tuple[int, int]
_NEVER = 1 << 62
_NONE = Losses()


def live_spans(events: Iterable[Event], losses: Losses = _NONE) -> dict[int, list[Span]]:
    """Return when each item was certainly live, neither ended nor a dead letter. A delivery says so unless the item may
    have ended at the same time: by the ack of an earlier holder whose lease has ended, or by a last attempt that a
    request without an answer brought. A loss may end an item at any moment until its shard is served again."""
    starts: dict[int, list[Stored | Delivered]] = defaultdict(list)
    unseen: list[Span] = []
    ends: dict[int, list[Span]] = defaultdict(lambda: [*unseen])
    lease = LEASE_MS * _NS_PER_MS
    events = list(events)
    unseen += [(one.began + lease, one.ended + lease) for one in events if isinstance(one, Lost)]
    for event in events:
        match event:
            case Stored():
                starts[event.id].append(event)
            case Delivered():
                starts[event.id].append(event)
                if event.attempt >= ATTEMPTS:  # the end of the lease may end it
                    at = event.began + lease
                    ends[event.id].append((at, at))
            case Ended():
                ends[event.id].append((event.began, event.ended))
    for item_id in starts:
        ends[item_id] += [(loss.began, loss.back) for loss in losses.of(item_id)]
    return {
        item_id: list(_spans([one.ended for one in its if _sure(one, ends[item_id])], ends[item_id]))
        for item_id, its in starts.items()
    }


def _sure(start: Stored | Delivered, ends: list[Span]) -> bool:
    return not any(began < start.ended and ended > start.began for began, ended in ends)


def waiting_spans(events: Iterable[Event], losses: Losses = _NONE) -> dict[int, list[Span]]:
    """Return when each item had certainly not been delivered. A request without an answer may have delivered an item
    whose first delivery that is known is not its first attempt, or is so late that all attempts before may have ended
    and a redrive begun them again. A loss may end an item."""
    all_leases = ATTEMPTS * LEASE_MS * _NS_PER_MS
    stored: dict[int, Stored] = {}
    deliveries: dict[int, list[Delivered]] = defaultdict(list)
    lost: list[Lost] = []
    for event in events:
        match event:
            case Stored():
                stored[event.id] = event
            case Delivered():
                deliveries[event.id].append(event)
            case Lost():
                lost.append(event)
    spans: dict[int, list[Span]] = {}
    for item_id, enqueue in stored.items():
        at = enqueue.ended
        delivered = _first(deliveries[item_id])
        end = _NEVER if delivered is None else delivered.began
        before = end - all_leases if delivered is not None and delivered.attempt == 1 else end
        end = min([end, *(max(at, one.began) for one in lost if one.ended > enqueue.began and one.began <= before)])
        end = min([end, *(max(at, loss.began) for loss in losses.of(item_id) if loss.back > enqueue.began)])
        spans[item_id] = [(at, end)] if end > at else []  # it may be delivered before its enqueue is answered
    return spans


def _first(deliveries: Sequence[Delivered]) -> Delivered | None:
    """Return the first delivery. By their times several may be the first, and their attempts decide. The attempt of a
    later delivery says nothing: a redrive begins with attempt 1 again."""
    until = min([one.ended for one in deliveries], default=0)
    return min(
        (one for one in deliveries if one.began <= until), key=lambda one: (one.attempt, one.began), default=None
    )


def _spans(starts: list[int], ends: list[Span]) -> Iterator[Span]:
    """Yield the times from a start to the first end behind it."""
    until = 0
    for start in sorted(starts):
        if start >= until:
            until = min([began for began, _ in ends if began >= start], default=_NEVER)
            yield start, until


def overlaps(events: Sequence[Event], spans: dict[int, list[Span]]) -> list[str]:
    """Return which items with one key were live, or waited, at the same time."""
    keys = {event.id: event.key for event in events if isinstance(event, Stored | Delivered)}
    of_key: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for item_id, its in spans.items():
        of_key[keys[item_id]] += [(start, end, item_id) for start, end in its]
    found = []
    for key, times in of_key.items():
        for (_, end, one), (start, _, other) in pairwise(sorted(times)):
            if start < end and one != other:
                story = _story(events, {one, other})
                found.append(f"key {key}: items {one} and {other} for {(end - start) / 1e6:.1f} ms: {story}")
    return found


def _story(events: Sequence[Event], ids: set[int]) -> str:
    """Return what happened to the items, and which requests had no answer in their time."""
    of_items = [event for event in events if not isinstance(event, Lost) and event.id in ids]
    first, last = min(event.began for event in of_items), max(event.ended for event in of_items)
    lost = [event for event in events if isinstance(event, Lost) and event.began < last and event.ended > first]
    return "; ".join(map(str, sorted([*of_items, *lost], key=lambda event: event.began)))


def old_payloads(events: Iterable[Event], losses: Losses = _NONE) -> list[str]:
    """Return which items were delivered with an old payload: another enqueue that began when this payload
    had been enqueued was answered, before the delivery, that the item has its payload, and no loss undid that."""
    made: dict[int, Stored | Changed] = {}
    changes: dict[int, list[Changed]] = defaultdict(list)
    deliveries = []
    for event in events:
        match event:
            case Stored() | Changed():
                made[event.number] = event
                if isinstance(event, Changed):
                    changes[event.id].append(event)
            case Delivered():
                deliveries.append(event)
    return [
        f"item {one.id} came with the payload of enqueue {one.number}, and has that of {later.number}"
        for one in deliveries
        if one.number in made  # else it had no answer, and may come late
        for later in changes[one.id]
        if later.began > made[one.number].ended and later.ended < one.began
        if not losses.undone("payloads undone", later.id, later.began, later.ended, one.ended)
    ]


@dataclass
class Report:
    """`wrong`: items with one key at the same time, or with old payloads. `stuck`: keys that no item had at the end and
    that were not free, also when the claims of redrives had ended. `counts` has what the clients did."""

    seed: int
    kills: int
    counts: Counter[str]
    took_s: float
    wrong: list[str] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.wrong or self.stuck)

    def __str__(self) -> str:
        did = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        return "\n  ".join(
            [
                f"seed {self.seed}: {self.kills} kills of the host in {self.took_s:.0f} s",
                did,
                *(f"wrong: {one}" for one in self.wrong[:10]),
                *([f"{len(self.stuck)} keys were not free at the end: {self.stuck[:10]}"] if self.stuck else []),
            ]
        )


class Crew:
    """Producers, consumers and a thread that redrives. Each producer pauses for `pause_s` after a request."""

    def __init__(self, addresses: str, seed: int, keys: int, enqueues: int, pause_s: float = 0.0) -> None:
        self.addresses = addresses
        self.seed = seed
        self.keys = keys
        self.events: dict[DedupUntil, list[Event]] = {DedupUntil.DONE: [], DedupUntil.STARTED: []}
        self.counts: Counter[str] = Counter()
        self.stopping = threading.Event()
        self._left = enqueues
        self._pause_s = pause_s
        self._makers: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._numbers = count(1)
        self._lock = threading.Lock()

    def client(self) -> Client:
        return Client(self.addresses, NAMESPACE, timeout_ms=20_000)

    @property
    def left(self) -> int:
        return self._left

    def begin(self, producers: int, consumers: int) -> None:
        with self.client() as client:
            client.put_settings({f"topic.{until.name}": _POLICY for until in self.events})
        self._makers = [self._start(self.produce, number) for number in range(producers)]
        self._others = [self._start(self.consume, number) for number in range(consumers)]
        self._others.append(self._start(self.redrive, 0))

    def finish(self) -> None:
        """End the consumers after the producers."""
        for thread in self._makers:
            thread.join(_LIMIT_S)
        self.stopping.set()
        for thread in self._others:
            thread.join(_LIMIT_S)

    def close(self, losses: Losses = _NONE) -> list[str]:
        """End now, delete the items that are left, and return the broken promises."""
        with self._lock:
            self._left = 0
        self.finish()
        wrong = [*self.wrong(losses), *(f"key {key} is not free at the end" for key in stuck(self))]
        delete_all(self)
        return wrong

    def wrong(self, losses: Losses = _NONE) -> list[str]:
        """Return which items had one key at the same time, or old payloads."""
        found = []
        for until, spans in ((DedupUntil.DONE, live_spans), (DedupUntil.STARTED, waiting_spans)):
            events = self.events[until]
            found += overlaps(events, spans(events, losses)) + old_payloads(events, losses)
        return found

    def _start(self, what: Callable[[Client, random.Random], None], number: int) -> threading.Thread:
        def run() -> None:
            rng = random.Random(f"{self.seed}/{what.__name__}/{number}")
            with self.client() as client:
                what(client, rng)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self.counts[name] += more

    def spec(self, key: int, number: int = 0, on_duplicate: OnDuplicate | None = None) -> ItemSpec:
        until, payload = until_of(key), b"%d %d" % (key, number)
        return ItemSpec(until.name, payload, dedup_key=f"key {key}", dedup_until=until, on_duplicate=on_duplicate)

    def produce(self, client: Client, rng: random.Random) -> None:
        while self._left > 0:
            sleep(self._pause_s)
            with self._lock:
                self._left -= _BATCH
                numbers = list(islice(self._numbers, _BATCH))
            keys = [rng.randrange(self.keys) for _ in range(_BATCH)]
            how = rng.choice([OnDuplicate.KEEP, OnDuplicate.REPLACE])
            began = monotonic_ns()
            outcomes = client.enqueue_many(
                [self.spec(key, number, how) for key, number in zip(keys, numbers, strict=True)]
            )
            ended = monotonic_ns()
            for key, number, outcome in zip(keys, numbers, outcomes, strict=True):
                if isinstance(outcome, FoqsError):
                    self._count("unknown" if isinstance(outcome, OutcomeUnknown) else "refused")
                elif isinstance(outcome, Replaced):
                    self._count("replaced")
                    self.events[until_of(key)].append(Changed(began, ended, key, int(outcome), number))
                elif isinstance(outcome, Duplicate):
                    self._count("kept")
                else:
                    self._count("stored")
                    self.events[until_of(key)].append(Stored(began, ended, key, int(outcome), number))

    def consume(self, client: Client, rng: random.Random) -> None:
        while not self.stopping.is_set():
            self.take(client, rng, rng.choice(list(self.events)), acks=0.5, fails=0.4)

    def take(self, client: Client, rng: random.Random, until: DedupUntil, *, acks: float, fails: float) -> int:
        """Take items, and ack them, fail them, or forget them. Return how many came."""
        log, began, repeated = self.events[until], monotonic_ns(), client.waits[0]
        items: Sequence[Item] = ()
        answered = False
        with suppress(FoqsError):
            items = client.dequeue(until.name, 20, wait_ms=200, lease_ms=LEASE_MS)
            answered = client.waits[0] == repeated  # else the client has repeated a request
        ended = monotonic_ns()
        if not answered:
            log.append(Lost(began, ended))
        for item in items:
            key, number = map(int, item.payload.split())
            log.append(Delivered(began, ended, key, item.id, item.attempt, number))
        self._count("delivered", len(items))
        lucks = [(item, rng.random()) for item in items]
        acked = [item for item, luck in lucks if luck < acks]
        failed = [item for item, luck in lucks if acks <= luck < acks + fails]
        sent = monotonic_ns()
        outcomes = client.ack_many(acked) + client.nack_many([Nack.of(item, failed=True) for item in failed])
        ended = monotonic_ns()
        self._count("ends without an answer, or refused", sum(error is not None for error in outcomes))
        over = [*acked, *(item for item in failed if item.attempt >= ATTEMPTS)]
        log += [Ended(sent, ended, item.id) for item in over]
        return len(items)

    def redrive(self, client: Client, rng: random.Random) -> None:
        while not self.stopping.wait(0.2):
            for until in self.events:
                try:
                    found = client.redrive(f"{until.name}.dlq", count=50)
                except FoqsError:
                    continue
                self._count("redriven", found.at_least)
                self._count("redrives that found another item with the key", found.skipped_duplicate)


def until_of(key: int) -> DedupUntil:
    """Return when the key is free."""
    return DedupUntil.STARTED if key % 2 else DedupUntil.DONE


def run_unique(
    shards: Sequence[Shard], folder: Path, seed: int, keys: int, enqueues: int, producers: int, kills: int
) -> Report:
    """Let clients enqueue, take and redrive items of `keys` keys, and kill the host `kills` times. Logs go to `folder`.

    Raises TimeoutError."""
    began = monotonic()
    with HostProcess("host", shards, folder) as host:
        crew = Crew(f"127.0.0.1:{host.port}", seed, keys, enqueues)
        crew.begin(producers, _CONSUMERS)
        for number in range(kills):
            while crew.left > enqueues * (kills - number) // (kills + 1):
                _check_time(began)
                sleep(0.01)
            host.kill()
            host.launch()
            host.wait_listening()
        crew.finish()
        return Report(seed, kills, crew.counts, monotonic() - began, crew.wrong(), stuck(crew))


def delete_all(crew: Crew) -> None:
    """Delete the items that are left, also the dead letters."""
    with crew.client() as client:
        for topic in [f"{until.name}{end}" for until in crew.events for end in ("", ".dlq")]:
            client.delete_items([item.id for item in client.list_items(topic, page_items=1_000)])


def stuck(crew: Crew) -> list[int]:
    """Ack all that is left, and return the keys that are not free then, a second later, or a minute later where a
    redrive died between its steps. Raises TimeoutError."""
    rng, began = random.Random(f"{crew.seed}/end"), monotonic()
    with crew.client() as client:
        for until in crew.events:
            empty_ms = 0
            while empty_ms < 2 * LEASE_MS:
                empty_ms = 0 if crew.take(client, rng, until, acks=1.0, fails=0.0) else empty_ms + 200
                _check_time(began)
        sleep(1.0)  # the time that is promised
        found = _not_free(client, crew, range(crew.keys))
        deadline = monotonic() + CLAIM_MS / 1_000 + 5
        crew.counts["keys that a redrive had claimed when the host died"] = len(found)
        while found and monotonic() < deadline:
            sleep(1.0)
            found = _not_free(client, crew, found)
    return found


def _not_free(client: Client, crew: Crew, keys: Sequence[int]) -> list[int]:
    outcomes = client.enqueue_many([crew.spec(key) for key in keys])
    stored = [isinstance(outcome, int) and not isinstance(outcome, Duplicate) for outcome in outcomes]
    return [key for key, free in zip(keys, stored, strict=True) if not free]


def _check_time(began: float) -> None:
    if monotonic() - began > _LIMIT_S:
        raise TimeoutError(f"the run was not over after {_LIMIT_S:.0f} s")
