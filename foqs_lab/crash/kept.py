"""Clients of items that are kept after their end, by their topic or by their rules, and the look-ups of these ends.

Each ack brings its lease as the result, so a result names the ack that ended the item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from time import monotonic_ns

from foqs.client import Client, ItemRules
from foqs.client.items import ItemSpec, ItemState
from foqs.errors import FoqsError, NotFound
from foqs_lab.crash.clients import Consumer, Producer, Wire, put
from foqs_lab.crash.history import Ack, Answer, Event, Log, Look, pack

TOPIC = "kept"
RULED = "ruled"
"""A topic that keeps nothing. The rules of its items do."""
TOPICS = (TOPIC, RULED)
_KEEP_MS = 86_400_000
_RULES = [ItemRules(keep_ms=_KEEP_MS + more) for more in range(5)]
_WAIT_MS = 2_000
_MOST_LOOKS = 3_000
_AT_ONCE = 6
_LOOK_MS = 30_000
_DELETED_AT_ONCE = 1_000


class KeptProducer(Producer):
    kind = "/kept"

    def _spec(self, key: str) -> ItemSpec:
        priority = self._rng.randint(-5, 5)
        if self._rng.random() < 0.5:
            return ItemSpec(TOPIC, pack(key, 50), priority=priority)
        return ItemSpec(RULED, pack(key, 50), priority=priority, rules=self._rng.choice(_RULES))


class Waiter(KeptProducer):
    """Enqueues one item at a time, and waits for its end."""

    kind = "/awaited"

    def _step(self) -> None:
        self._number += 1
        key = f"{self.name}{self.kind}:{self._number}"
        (outcome,) = put(self._wire, self._log, [key], [self._spec(key)])
        if isinstance(outcome, int):
            self._progress.add(stored=[outcome])
            look(self._wire, self._log, outcome, _WAIT_MS)
        self._pause_when_refused([outcome])


class KeptConsumer(Consumer):
    asked = (TOPICS,)


def settings() -> dict[str, str]:
    return {f"topic.{TOPIC}": f'{{"keep": {{"completed_ms": {_KEEP_MS}, "most": 10000000}}}}'}


def look(wire: Wire, log: Log, item_id: int, wait_ms: int = 0) -> None:
    """Ask how an item ended, and log the answer if there is one."""
    began = monotonic_ns()
    try:
        found = wire.result(item_id, wait_ms=wait_ms)
    except NotFound:
        log.add([Look(began, monotonic_ns(), item_id, 0, "")])
    except FoqsError:
        pass
    else:
        log.add([Look(began, monotonic_ns(), item_id, found.state, (found.result or b"").decode())])


def look_at_acked(ports: Sequence[int], namespace: str, log: Log, events: Iterable[Event]) -> None:
    """Look at items whose ack was answered OK, through several connections at a time."""
    acked = {event.id for event in events if isinstance(event, Ack) and event.answer is Answer.OK}
    ids = list(islice(acked, _MOST_LOOKS))

    def look_at_some(number: int) -> None:
        with closing(Wire(ports[number % len(ports)], namespace, timeout_ms=_LOOK_MS)) as wire:
            for item_id in ids[number::_AT_ONCE]:
                look(wire, log, item_id)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(look_at_some, range(_AT_ONCE)))


def delete_all(client: Client) -> None:
    """Delete the kept items."""
    listed = (client.list_items(topic, state=ItemState.COMPLETED, page_items=1_000) for topic in TOPICS)
    ids: Iterator[int] = (item.id for items in listed for item in items)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(client.delete_items, iter(lambda: list(islice(ids, _DELETED_AT_ONCE)), [])))
