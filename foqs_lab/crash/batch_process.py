"""A process of producers or consumers of batches of items: run as `python -m foqs_lab.crash.batch_process`, with a JSON
object of the fields of `BatchPart`. It writes each request and each answer to its journal, with times of the machine's
monotonic clock (ns). `name` is a batch's, as its payloads have it; an answer is "invalid", or of `history.Answer`:

    ["create", began, ended, name, answer, id, parent]          `parent`: its name, "" without
    ["put", began, ended, name, [[seq, tried, answer, id], ...]]
    ["close" or "cancel", began, ended, name, answer]
    ["got", began, ended, [[name, seq, tried, id, lease], ...]]
    ["ack" or "nack", began, [[id, lease], ...]]                before it is sent
    ["acked" or "nacked", ended, [[id, lease, answer], ...]]
    ["called", began, ended, [[name, kind, id, enqueued_at_ms, headers], ...]]
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from time import monotonic_ns, sleep
from zlib import crc32

from foqs.client import Client, Item, ItemSpec, Lease
from foqs.errors import FoqsError, Invalid
from foqs_lab.crash.clients import answer_of
from foqs_lab.crash.history import NS_PER_MS, Answer
from foqs_lab.crash.parts import PAUSE_S, TIMEOUT_MS, Journal, Part, Wires

NAMESPACE = "batches"
MEMBERS, FAILING, CALLED = "members", "failing", "called"
"""Topics. The first failure of an item in `failing` makes it a dead letter."""
KINDS = (
    "plain", "keys", "order", "nested", "deep", "growing", "mixed", "failing", "cancelled", "expired",
)  # fmt: skip
INVALID = "invalid"
LEASE_MS = 6_000
"""Longer than a session: leases live on at the next owners of shards."""
RETRY_MS = 100
GROWN = 2
"""A member that adds members adds this many."""
_REQUEST = 200
_OPEN = 3
"""A producer has this many batches at a time."""
_GROWING, _FAILING = 10, 10
"""Percent."""
_FAILED, _FORGOTTEN, _HELD = 0.05, 0.005, 0.03
_WAIT_MS = 300
_EXPIRY_MS = 3_000, 8_000
_TRIES = 100

Named = tuple[str, int, int]


@dataclass(frozen=True)
class BatchPart(Part):
    """Producers have the batches `first`, `first` + `step` and so on below `batches`, each with `members` members."""

    batches: int = 0
    members: int = 0
    first: int = 0
    step: int = 1


def kind_of(name: str) -> str:
    """Return the kind of the batch. "7/1" is a member of "7", "7/1/1" of "7/1": all have the kind of "7"."""
    return KINDS[int(name.partition("/")[0]) % len(KINDS)]


def callbacks_of(name: str) -> tuple[str, ...]:
    """Return which callbacks the batch has. A member of a member has none."""
    number, depth = int(name.partition("/")[0]) // len(KINDS), name.count("/")
    if depth == 2:
        return ()
    return (("success", "end"), ("success",), ("end",))[number % 3]


def _said(outcome: object) -> str:
    return INVALID if isinstance(outcome, Invalid) else answer_of(outcome)


def _id_of(outcome: object) -> int:
    return outcome if isinstance(outcome, int) else 0


class Producer:
    """Makes batches, some at a time. A request that was refused, or has an unknown outcome, is sent again; of a member
    that is not in a deduplicated batch as another one, with a higher `tried`."""

    def __init__(self, part: BatchPart, number: int, journal: Journal) -> None:
        self._part = part
        self._journal = journal
        self._rng = random.Random(f"{part.seed}/{number}")
        self._numbers = iter(range(part.first + number * part.step, part.batches, part.step * part.threads))

    def run(self) -> None:
        with Client(self._part.addresses, NAMESPACE, timeout_ms=TIMEOUT_MS) as client:
            running = list[Iterator[None]]()
            while not self._part.stop.exists():
                while len(running) < _OPEN and (number := next(self._numbers, None)) is not None:
                    running.append(self._make(client, number))
                if not running:
                    return
                if self._part.full.exists():
                    sleep(PAUSE_S)
                    continue
                one = running.pop(0)
                if next(one, running) is None:
                    running.append(one)

    def _make(self, client: Client, number: int) -> Iterator[None]:
        """Make a batch, and yield after each request."""
        kind, names = KINDS[number % len(KINDS)], [str(number)]
        if kind in ("nested", "deep"):
            names.append(f"{number}/1")
        if kind == "deep":
            names.append(f"{number}/1/1")
        ids = list[int]()
        for name in names:
            batch = yield from self._create(client, name, ids[-1] if ids else None, kind)
            if batch is None:
                break  # the parents may have a member whose id is lost
            ids.append(batch)
        whole = len(ids) == len(names)
        share, rest = divmod(self._part.members, len(names))
        made = [*zip(names, ids, strict=False)]
        # A parent that closes first has to wait for its last member, a batch that gets members.
        for name, batch in made if kind == "deep" else reversed(made):
            count = share + (rest if name == names[0] else 0)
            if kind == "cancelled":
                count -= self._rng.randrange(count // 2 + 1)
            yield from self._fill(client, name, batch, count, kind)
            if kind == "cancelled" or not whole:
                yield from self._turn(client, "cancel", name, batch)
            elif kind != "expired":
                yield from self._turn(client, "close", name, batch)

    def _create(self, client: Client, name: str, parent: int | None, kind: str) -> Generator[None, None, int | None]:
        above = name.rpartition("/")[0]
        options = {what: ItemSpec(CALLED, f"{what} {name}".encode()) for what in callbacks_of(name)}
        ttl_ms = self._rng.randint(*_EXPIRY_MS) if kind == "expired" else None
        while True:
            began = monotonic_ns()
            try:
                outcome: object = client.create_batch(
                    on_success=options.get("success"), on_end=options.get("end"), ttl_ms=ttl_ms, parent=parent
                )
            except FoqsError as error:
                outcome = error
            said = _said(outcome)
            self._journal.write("create", began, monotonic_ns(), name, said, _id_of(outcome), above)
            yield
            if said == Answer.OK:
                return _id_of(outcome)
            if parent and said != Answer.REFUSED:
                return None

    def _fill(self, client: Client, name: str, batch: int, count: int, kind: str) -> Iterator[None]:
        """Add members until they are stored, or the batch takes none."""
        left, tried = list(range(count)), [0] * count
        while left:
            names = [(name, seq, 0 if kind == "keys" else tried[seq]) for seq in left[:_REQUEST]]
            for seq in left[:_REQUEST]:
                tried[seq] += 1
            answers = put(client.enqueue_many, self._journal, names, batch, kind)
            stored = {seq for (_, seq, _), answer in zip(names, answers, strict=True) if answer == Answer.OK}
            left = [seq for seq in left if seq not in stored]
            if INVALID in answers:
                return
            if not stored:
                sleep(PAUSE_S)
            yield

    def _turn(self, client: Client, what: str, name: str, batch: int) -> Iterator[None]:
        answer = ""
        while answer != Answer.OK:
            began = monotonic_ns()
            try:
                (client.close_batch if what == "close" else client.cancel_batch)(batch)
                answer = Answer.OK
            except FoqsError as error:
                answer = _said(error)
            self._journal.write(what, began, monotonic_ns(), name, answer)
            yield


def put(
    enqueue: Callable[[list[ItemSpec]], Sequence[int | FoqsError]],
    journal: Journal,
    names: Sequence[Named],
    batch: int,
    kind: str,
) -> list[str]:
    """Enqueue members of a batch in one request, and return the answers."""
    specs = [_spec(name, batch, kind) for name in names]
    began = monotonic_ns()
    outcomes = enqueue(specs)
    answers = [_said(one) for one in outcomes]
    rows = [
        (seq, tried, answer, _id_of(one)) for (_, seq, tried), answer, one in zip(names, answers, outcomes, strict=True)
    ]
    journal.write("put", began, monotonic_ns(), names[0][0], rows)
    return answers


def _spec(named: Named, batch: int, kind: str) -> ItemSpec:
    name, seq, tried = named
    luck = crc32(f"{name} {seq}".encode()) % 100
    fails = kind in ("failing", "mixed") and luck < _FAILING
    grows = kind in ("growing", "mixed") and luck >= 100 - _GROWING
    payload = f"{name} {seq} {tried} {'fail' if fails else 'grow' if grows else 'ack'}".encode()
    spec = ItemSpec(FAILING if fails else MEMBERS, payload, batch=batch)
    if kind == "keys":
        spec.dedup_key = f"{name} {seq}"
    elif kind == "order":
        spec.order_key = f"{name} {seq % 50}"
    return spec


class Consumer:
    """Acks most members at once, fails or forgets some, and holds a few for up to one and a half times their lease."""

    def __init__(self, part: BatchPart, number: int, journal: Journal) -> None:
        self._journal = journal
        self._rng = random.Random(f"{part.seed}/{number}")
        self._wires = Wires(part, number, NAMESPACE)
        self._held: list[tuple[int, Lease]] = []
        self._grown = 0
        self._place = self._rng.randrange(1, 1 << 40) << 20
        """Apart from other processes: the numbers of members that members add."""

    def run(self) -> None:
        """Take items for ever. The process is killed at the end."""
        while True:
            acks, fails = list[Lease](), list[Lease]()
            for item in self._take():
                luck, lease, what = self._rng.random(), Lease(item.id, item.lease), item.payload.rpartition(b" ")[2]
                if what == b"fail" or luck < _FAILED or (what == b"grow" and not self._grow(item)):
                    fails.append(lease)
                elif luck < _FAILED + _HELD:
                    held_ms = self._rng.randint(0, LEASE_MS * 3 // 2)
                    heappush(self._held, (monotonic_ns() + held_ms * NS_PER_MS, lease))
                elif luck > _FAILED + _HELD + _FORGOTTEN:
                    acks.append(lease)
            while self._held and self._held[0][0] <= monotonic_ns():
                acks.append(heappop(self._held)[1])
            self._end("nack", fails)
            self._end("ack", acks)

    def _take(self) -> list[Item]:
        began, ended, items = self._wires.take((MEMBERS, FAILING), _REQUEST // 2, _WAIT_MS, LEASE_MS)
        if items:
            self._journal.write("got", began, ended, [(*_named(item), item.id, item.lease) for item in items])
        return items

    def _grow(self, item: Item) -> bool:
        """Add members to the batch of a member that lives. Return True if they are stored."""
        name, _, _ = _named(item)
        assert item.batch is not None, "it is a member"
        self._grown += GROWN
        seqs = [self._place + self._grown + at for at in range(GROWN)]
        for tried in range(_TRIES):
            names = [(name, seq, tried) for seq in seqs]
            answers = put(self._wires.now.enqueue, self._journal, names, item.batch, "plain")
            seqs = [seq for seq, answer in zip(seqs, answers, strict=True) if answer != Answer.OK]
            if not seqs or INVALID in answers:
                return not seqs
            self._wires.rotate()
            sleep(PAUSE_S)
        return False

    def _end(self, what: str, leases: list[Lease]) -> None:
        if not leases:
            return
        self._journal.write(what, monotonic_ns(), leases)
        wire = self._wires.now
        outcomes = wire.ack(leases) if what == "ack" else wire.nack(leases, failed=True)
        answers = [(*lease, _said(one)) for lease, one in zip(leases, outcomes, strict=True)]
        self._journal.write(f"{what}ed", monotonic_ns(), answers)
        if all(isinstance(one, FoqsError) for one in outcomes):
            self._wires.rotate()


def _named(item: Item) -> Named:
    name, seq, tried, _ = item.payload.decode().split()
    return name, int(seq), int(tried)


class Caller:
    """Takes the callbacks of batches."""

    def __init__(self, part: BatchPart, journal: Journal) -> None:
        self._journal = journal
        self._rng = random.Random(f"{part.seed}/callbacks")
        self._wires = Wires(part, self._rng.randrange(len(part.ports)), NAMESPACE)

    def run(self) -> None:
        """Take callbacks for ever, and forget some."""
        while True:
            began, ended, items = self._wires.take((CALLED,), _REQUEST, _WAIT_MS, LEASE_MS)
            if items:
                called = []
                for item in items:
                    kind, name = item.payload.decode().split()
                    called.append((name, kind, item.id, item.enqueued_at_ms, item.headers))
                self._journal.write("called", began, ended, called)
                self._wires.now.ack([item for item in items if self._rng.random() > _FORGOTTEN])


def main(text: str) -> None:
    part = BatchPart(**json.loads(text))
    journal = Journal(part.folder)
    kind = Producer if part.batches else Consumer
    works = [kind(part, number, journal).run for number in range(part.threads)]
    if not part.batches:
        works.append(Caller(part, journal).run)
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
