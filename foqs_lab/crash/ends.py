"""Clients of items that end in every way, readers of the end events, and what these events must not say.

What an item may do follows from its key. An ack has its lease as the result, and a failure as the reason: so an event
names the request that ended its item. How many ends an item had follows from the databases: it lives, or it has ended
once more than it was redriven.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

from foqs.client import Client, DedupUntil
from foqs.client.items import Delivery as Policy
from foqs.client.items import Item, ItemSpec, Leased
from foqs.errors import FoqsError
from foqs_lab.crash.checker import Lie
from foqs_lab.crash.clients import LEASE_MS, NAMESPACE, Consumer, Crew, Load, Producer, Wire, answer_of
from foqs_lab.crash.clients import TOPICS as OTHER_TOPICS
from foqs_lab.crash.history import Ack, Answer, Delivery, End, Enqueue, Event, Log, Redrive, Told, pack

EVENTS, DEAD, LATE = "events", "ends.dlq", "late"
TOPICS = ("ends", "plain", "kept")
"""With dead letters, without them, and one that keeps items for a time."""
_SHAPES = ("usual", "usual", "short", "keyed", "once", "late")
"""Short items have a TTL, and late ones are due after the run."""
_MOST_ATTEMPTS = 2
_KEEP_MS = 1_000
_LATE_MS = 3_600_000
_LOAD = Load(producers=2, consumers=4, nacked=0.3)
_PAUSE_S = 0.1
_AT_ONCE = 200
_TIMEOUT_MS = 30_000
_MAYBE_DONE = (Answer.OK, Answer.UNKNOWN)


def settings() -> dict[str, str]:
    fails: dict[str, Any] = {"max_attempts": _MOST_ATTEMPTS, "retry": {"kind": "constant", "first_ms": 0}}
    entries: dict[str, dict[str, Any]] = {
        "*": {"on_end_topic": EVENTS},
        EVENTS: {"on_end_topic": None},
        "ends": fails,
        "plain": fails | {"dead": None},
        "kept": fails | {"dead": None, "keep": {"completed_ms": _KEEP_MS, "failed_ms": _KEEP_MS}},
    }
    return {f"topic.{topic}": json.dumps(entry) for topic, entry in entries.items()}


def shape_of(key: str) -> str:
    """Return what the item with this key does, "" if it is another client's."""
    name, _, number = key.rpartition(":")
    return _SHAPES[int(number) % len(_SHAPES)] if name.endswith(EndsProducer.kind) else ""


def topic_of(key: str) -> str:
    number = int(key.rpartition(":")[2])
    return LATE if shape_of(key) == "late" else TOPICS[number // len(_SHAPES) % len(TOPICS)]


class EndsProducer(Producer):
    """No bound of waiting items holds for it: most of its items end without an ack."""

    kind = "/ends"

    def _step(self) -> None:
        self._make()
        self._stopping.wait(_PAUSE_S)

    def _spec(self, key: str) -> ItemSpec:
        rng, shape = self._rng, shape_of(key)
        return ItemSpec(
            topic_of(key),
            pack(key, 50),
            priority=rng.randint(-5, 5),
            ttl_ms=rng.randint(50, 2_000) if shape == "short" else None,
            delay_ms=_LATE_MS if shape == "late" else None,
            dedup_key=key if shape == "keyed" else None,
            dedup_until=DedupUntil.DONE if shape == "keyed" else None,
            delivery=Policy.AT_MOST_ONCE if shape == "once" else Policy.AT_LEAST_ONCE,
        )


class Ender(EndsProducer):
    """Deletes and cancels some of its own items, while consumers take them."""

    def _step(self) -> None:
        made = self._make()
        self._stopping.wait(self._rng.uniform(0, 2 * _PAUSE_S))
        some = {key: item_id for key, item_id in made.items() if self._rng.random() < 0.5}
        for key, item_id in some.items():
            if shape_of(key) == "keyed":
                began = monotonic_ns()
                outcome = self._wire.cancel(key)
                self._log.add([End(began, monotonic_ns(), item_id, "cancelled", "", answer_of(outcome))])
        ids = [item_id for key, item_id in some.items() if shape_of(key) != "keyed"]
        if ids:
            began = monotonic_ns()
            outcomes = self._wire.delete(ids)
            ended = monotonic_ns()
            self._log.add(
                End(began, ended, item_id, "deleted", "", answer_of(outcome))
                for item_id, outcome in zip(ids, outcomes, strict=True)
            )


class EndsConsumer(Consumer):
    """Also fails and rejects items, redrives dead letters, and acks some, which is no end."""

    asked = (TOPICS,)

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._dead: deque[int] = deque()

    def _step(self) -> None:
        super()._step()
        luck = self._rng.random()
        if luck < 0.25 and self._dead:
            item_id, began = self._dead.popleft(), monotonic_ns()
            outcome = self._wire.redrive(DEAD, item_id)
            self._log.add([Redrive(began, monotonic_ns(), item_id, answer_of(outcome))])
        elif luck > 0.95:
            try:
                self._wire.ack(self._wire.dequeue((DEAD,), 2, wait_ms=0, lease_ms=LEASE_MS))
            except FoqsError:
                return

    def _nack(self, items: Sequence[Item]) -> None:
        lucks = [(item, self._rng.random()) for item in items]
        if nacked := [item for item, luck in lucks if luck < 0.2]:
            super()._nack(nacked)
        if failed := [item for item, luck in lucks if 0.2 <= luck < 0.7]:
            self._fail(failed, reject=False)
        if rejected := [item for item, luck in lucks if luck >= 0.7]:
            self._fail(rejected, reject=True)

    def _fail(self, items: Sequence[Item], *, reject: bool) -> None:
        began = monotonic_ns()
        outcomes = self._wire.nack(items, failed=not reject, reject=reject)
        ended = monotonic_ns()
        last = [
            (item, answer_of(outcome))
            for item, outcome in zip(items, outcomes, strict=True)
            if reject or item.attempt >= _MOST_ATTEMPTS or item.delivery == Policy.AT_MOST_ONCE
        ]
        self._log.add(
            End(began, ended, item.id, "lease_ended" if item.delivery == Policy.AT_MOST_ONCE else "failed",
                str(item.lease), answer)
            for item, answer in last
        )  # fmt: skip
        self._dead += [item.id for item, answer in last if item.topic == TOPICS[0] and answer in _MAYBE_DONE]


class EventReader(Consumer):
    """Takes end events, and forgets to ack some."""

    def _step(self) -> None:
        if not read_events(self._wire, self._log, lambda event: self._rng.random() < self._load.forgotten):
            self._stopping.wait(_PAUSE_S)


def read_events(wire: Wire, log: Log, forgets: Callable[[Leased], bool] = lambda event: False) -> int:
    """Take some events, log them, and ack them. Return how many there were."""
    began = monotonic_ns()
    try:
        taken = wire.dequeue((EVENTS,), _AT_ONCE, wait_ms=50, lease_ms=LEASE_MS)
    except FoqsError:
        return 0
    log.add([told(began, monotonic_ns(), event.id, json.loads(event.payload)) for event in taken])
    if acked := [event for event in taken if not forgets(event)]:
        wire.ack(acked)
    return len(taken)


def told(began: int, ended: int, event: int, said: Mapping[str, Any]) -> Told:
    failure = said.get("failure", {})
    reason = failure["reason"] if failure.get("cause") in ("failed", "rejected") and said["how"] != "expired" else ""
    return Told(began, ended, event, int(said["id"]), said["topic"], said["how"], said.get("result", reason))


def crew(port: int, folder: Path, seed: str) -> Crew:
    """Put the settings, and return the clients; logs go to `folder`."""
    folder.mkdir()
    with Client(f"127.0.0.1:{port}", NAMESPACE) as client:
        client.put_settings(settings())
    return Crew(
        [port], folder, seed, _LOAD, (EndsProducer, Ender), (EndsConsumer, EndsConsumer, EndsConsumer, EventReader)
    )


def drain_events(port: int, folder: Path, is_empty: Callable[[], bool], timeout_s: float) -> bool:
    """Read events until `is_empty()`; False when that took longer."""
    deadline = monotonic() + timeout_s
    with closing(Wire(port, NAMESPACE, timeout_ms=_TIMEOUT_MS)) as wire, closing(Log(folder / "events.jsonl")) as log:
        while monotonic() < deadline:
            if not read_events(wire, log) and is_empty():
                return True
    return False


# ---------------------------------------------------------------------------------------------- the checks


class Rule(StrEnum):
    LOST = "an end has no event"
    DOUBLED = "an end has two events"
    WRONG = "an event tells an end that did not happen"


class _Item:
    """All that is known of one id."""

    def __init__(self) -> None:
        self.enqueue: Enqueue | None = None
        self.claims: set[tuple[str, str, Answer]] = set()  # how, mark and answer of requests that may have ended it
        self.redrives: Counter[Answer] = Counter()
        self.told: dict[int, Told] = {}

    def may_have(self, how: str, mark: str) -> bool:
        return any((how, mark, answer) in self.claims for answer in _MAYBE_DONE)

    @property
    def certain(self) -> set[tuple[str, str]]:
        """The ends that only one request can have made, and that were answered OK."""
        return {(how, mark) for how, mark, answer in self.claims if mark and answer is Answer.OK}


def lies(events: Iterable[Event], there: Mapping[int, str]) -> tuple[list[Lie], Counter[str]]:
    """Return every end without its one event, every event without its end, and counts of the events.

    `there`: the topics of the items that are stored at the end. No event is left."""
    items, unknown, seen = _items(events)
    found: list[Lie] = []
    counts: Counter[str] = Counter(deliveries=seen)
    for item_id in items.keys() | there.keys():
        item = items[item_id]
        counts.update(one.how for one in item.told.values())
        found += _of_item(item_id, item, there.get(item_id), counts)
    strangers = [item_id for item_id, item in items.items() if item.enqueue is None and item_id not in there]
    if len(strangers) > unknown:
        found.append(
            Lie(Rule.WRONG, f"{len(strangers)} items, of {unknown} enqueues without an answer: {strangers[:5]}")
        )
    counts["events"] = sum(len(item.told) for item in items.values())
    counts["delivered again"] = counts.pop("deliveries") - counts["events"]
    counts["live at the end"] = len([topic for topic in there.values() if topic != DEAD])
    counts["dead letters at the end"] = len(there) - counts["live at the end"]
    return found, counts


def _items(events: Iterable[Event]) -> tuple[dict[int, _Item], int, int]:
    """Return each item, the number of enqueues whose items may be unknown, and the number of deliveries of events."""
    items: dict[int, _Item] = defaultdict(_Item)
    enqueues: dict[str, Enqueue] = {}
    ids: dict[str, int] = {}
    seen = 0
    for event in events:
        match event:
            case Enqueue():
                enqueues[event.key] = event
                if event.answer is Answer.OK:
                    ids[event.key] = event.id
            case Delivery():
                ids[event.key] = event.id
            case Ack():
                items[event.id].claims.add(("completed", str(event.lease), event.answer))
            case End():
                items[event.id].claims.add((event.how, event.mark, event.answer))
            case Redrive():
                items[event.id].redrives[event.answer] += 1
            case Told():
                items[event.id].told[event.event] = event
                seen += 1
    for key, item_id in ids.items():
        items[item_id].enqueue = enqueues.get(key)
    return items, sum(one.answer is Answer.UNKNOWN and key not in ids for key, one in enqueues.items()), seen


def _of_item(item_id: int, item: _Item, topic: str | None, counts: Counter[str]) -> Iterator[Lie]:
    """Check the events of an item that is in `topic` at the end, or is gone."""
    told = [*item.told.values()]
    story = f"{item_id} ({topic or 'gone'}): {told}, {item.claims}, {item.redrives}"
    for one in told:
        if not _possible(one, item):
            yield Lie(Rule.WRONG, f"{one} of {story}")
    least = item.redrives[Answer.OK] + (topic is None or topic == DEAD)
    most = least + item.redrives[Answer.UNKNOWN]
    counts["redriven"] += item.redrives[Answer.OK]
    counts["redrives with an unknown outcome"] += most - least
    if len(told) < least:
        yield Lie(Rule.LOST, f"{least} of {story}")
    elif len(told) > most:
        yield Lie(Rule.DOUBLED if most else Rule.WRONG, f"{most} of {story}")
    names = Counter((one.how, one.mark) for one in told)
    for name in item.certain:
        if names[name] > 1:
            yield Lie(Rule.DOUBLED, f"{name} of {story}")
        elif not names[name]:
            # An ack is answered OK where another request, the TTL or the last failure is just ending the item.
            others = [one for one in told if (one.how, one.mark) not in item.certain]
            counts["ends by another request at the time"] += bool(others)
            if not others:
                yield Lie(Rule.LOST, f"{name} of {story}")


def _possible(one: Told, item: _Item) -> bool:
    """Return True if the item may have ended so."""
    shape, once = "", False
    if item.enqueue is not None:
        shape, once = shape_of(item.enqueue.key), item.enqueue.at_most_once
        if one.topic not in ((topic_of(item.enqueue.key),) if shape else OTHER_TOPICS):
            return False
    if one.mark or one.how in ("completed", "deleted", "cancelled"):
        return item.may_have(one.how, one.mark)
    if one.how == "expired":
        return shape == "short" or item.enqueue is None
    if one.how == "lease_ended":
        return once or item.enqueue is None
    return one.how == "failed" and one.topic in TOPICS and not once
