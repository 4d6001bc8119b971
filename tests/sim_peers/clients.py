"""Clients of a simulated run: each sends every request to a host of its choice, and none is repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.errors import Code, FoqsError, OutcomeUnknown, Unavailable, from_code
from foqs.idl import idl
from tests.sim.records import broken
from tests.sim_peers.checks import Spec
from tests.sim_peers.exchange import Call, context
from tests.sim_peers.profile import FREE, KEYS, LIMITED, RATED

if TYPE_CHECKING:
    from tests.sim_peers.host import Host
    from tests.sim_peers.simulation import Simulation

_SLACK_MS = 700
"""A hung reply between hosts ends up to 500 ms after the time that the receiver was given."""
_METHODS = {"ack": "Ack", "nack": "Nack", "release": "Nack", "extend": "ExtendLease", "delete": "DeleteItems"}


class Clients:
    def __init__(self, sim: Simulation) -> None:
        self.sim, self.rng, self.checks = sim, sim.rng, sim.checks
        self.keyed: dict[str, Spec] = {}
        self.producing = True
        self.at: Host | None = None  # the only host with consumers
        self.open = 0
        self._held: list[tuple[int, int]] = []
        self._acks: dict[str, list[tuple[int, int]]] = {}  # ids and leases for the next request of a consumer
        self._requests = 0
        self._in_order = 0

    def start(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self._after(50, self._produce)
        for _ in range(self.rng.randint(1, 4)):
            self._after(50, self._consume)
        self._after(50, self._operate)

    def _after(self, most_ms: int, do: Callable[[], None]) -> None:
        self.sim.soon(self.rng.randint(1, most_ms), do)

    def send(
        self, method: str, request: Any, timeout_ms: int, done: Callable[[Any, FoqsError | None], None],
        wait_ms: int = 0, host: Host | None = None,
    ) -> None:  # fmt: skip
        """Send a request to a living host; `done` is called once."""
        sim = self.sim
        host = host or self.rng.choice([host for host in sim.hosts if host.alive])
        self._requests += 1
        request_id = f"r{self._requests}"
        request.context = context(timeout_ms, request_id)
        sim.exchange.entered[request_id] = host.name
        confirm_ms = sim.profile.config.host.confirm_ms
        due = sim.time + timeout_ms + wait_ms + 2 * confirm_ms + _SLACK_MS
        self.open += 1
        answers = 0

        def answered(response: Any, error: FoqsError | None) -> None:
            nonlocal answers
            answers += 1
            if answers > 1:
                broken(8, f"{method} {request_id} was answered twice")
            self.open -= 1
            host.clients.pop(call, None)
            done(response, error)

        call = Call(method, request, answered)
        host.clients[call] = None

        def overdue() -> None:
            if not answers and not sim.profile.freeze_every_ms:
                broken(8, f"{method} {request_id} was not answered by {host.name} in time")

        sim.soon(due - sim.time, overdue)
        host.receive(call)

    def died(self, host: Host) -> None:
        for call in list(host.clients):
            call.fail(OutcomeUnknown("the host died"))

    # ------------------------------------------------------------------------------------- producers

    def _produce(self) -> None:
        if not self.producing:
            return
        if self.sim.profile.ordered and self.rng.random() < 0.7:
            self.enqueue([self._ordered_spec() for _ in range(self.rng.choice([1, 3, 8]))])
            self._in_order += 1
        elif self.rng.random() < 0.4:
            self.enqueue([self._keyed_spec() for _ in range(self.rng.choice([1, 2, 5]))])
        else:
            ns = self.rng.choice([FREE, RATED])
            topic = self.rng.choice(self.sim.profile.topics)
            self.enqueue([self.checks.new_spec(ns, topic) for _ in range(self.rng.choice([1, 2, 6]))])
        self._after(self.rng.choice([50, 200]), self._produce)

    def _ordered_spec(self) -> Spec:
        spec = self.checks.new_spec(FREE, self.rng.choice(self.sim.profile.topics))
        spec.order, spec.request = self.rng.choice(KEYS[:2]), self._in_order
        return spec

    def _keyed_spec(self) -> Spec:
        """A key names one item for ever: an enqueue with it repeats that item."""
        key = self.rng.choice(KEYS)
        spec = self.keyed.get(key)
        if spec is None:
            spec = self.keyed[key] = self.checks.new_spec(FREE, self.rng.choice(self.sim.profile.topics), key)
        return spec

    def enqueue(
        self, specs: list[Spec], answered: Callable[[Spec, int | FoqsError], None] = lambda spec, outcome: None,
        host: Host | None = None,
    ) -> None:  # fmt: skip
        specs = list(dict.fromkeys(specs))
        rng, profile = self.rng, self.sim.profile
        items = []
        for spec in specs:
            item = idl.ItemSpec(spec.topic, spec.payload, dedup_key=spec.key, throttle_keys=spec.throttles or None)
            item.fairness_key, item.order_key = spec.tenant, spec.order
            if spec.key is None and rng.random() < profile.at_most_once:
                item.delivery = idl.Delivery.AT_MOST_ONCE
            if rng.random() < 0.1:
                item.delay_ms = rng.choice([50, 500])
            items.append(item)
            spec.open += 1

        def done(response: Any, error: FoqsError | None) -> None:
            for at, spec in enumerate(specs):
                outcome = error or _outcome(response.outcomes[at])
                self.checks.enqueued(spec, outcome)
                answered(spec, outcome)

        self.send("Enqueue", idl.EnqueueRequest(specs[0].ns, items), rng.choice([200, 3_000]), done, host=host)

    # ------------------------------------------------------------------------------------- consumers

    def drain(self, host: Host) -> None:
        """From now on, consumers wait at this host only, and ack all that they receive."""
        self.at = host
        for ns in (FREE, RATED, FREE, RATED, *[LIMITED] * self.sim.throttles.active):
            self._drain(ns)

    def _drain(self, ns: str, acks: Sequence[tuple[int, int]] = ()) -> None:
        """Receive items. Ack them in the next request, or each in its own."""
        wants = [idl.TopicCount(topic, 5) for topic in self.sim.profile.topics]

        def received(items: Sequence[Any]) -> None:
            leases = [(item.id, item.lease) for item in items]
            together = self.rng.random() < 0.5
            for item_id, token in () if together else leases:
                self.settle("ack", item_id, token)
            self._after(5, lambda: self._drain(ns, leases if together else ()))

        self.take(ns, wants, acks, received, 1_000, timeout_ms=1_000, wait_ms=5_000, host=self.at)

    def _consume(self) -> None:
        if self.at is not None:
            return
        rng = self.rng
        topics = rng.sample(self.sim.profile.topics, rng.randint(1, len(self.sim.profile.topics)))
        wants = [idl.TopicCount(topic, rng.choice([1, 3, 10])) for topic in topics]

        def received(items: Sequence[Any]) -> None:
            for item in items:
                self._held.append((item.id, item.lease))
                self._after(rng.choice([5, 600]), partial(self.handle, ns, item.id, item.lease))
            self._after(20, self._consume)

        ns, lease_ms = rng.choice([FREE, RATED]), rng.choice([100, 400, 1_500])
        wait_ms, timeout_ms = rng.choice([0, 50, 1_000]), rng.choice([200, 2_000])
        self.take(ns, wants, self._acks.pop(ns, ()), received, lease_ms, timeout_ms=timeout_ms, wait_ms=wait_ms)

    def take(
        self, ns: str, wants: list[Any], acks: Sequence[tuple[int, int]], received: Callable[[Sequence[Any]], None],
        lease_ms: int, *, timeout_ms: int, wait_ms: int, host: Host | None = None,
    ) -> None:  # fmt: skip
        """Dequeue, in one request with `acks` (ids and leases) if there are any; `received` gets the items."""
        acks = list(dict(acks).items())

        def done(response: Any, error: FoqsError | None) -> None:
            for at, (item_id, _) in enumerate(acks):
                one = None if error is not None else response.outcomes[at].error
                self.checks.answered("ack", item_id, error if one is None else _error(one))
            items = response.items if response is not None else ()
            for item in items:
                self.checks.delivered(item)
                host = self.sim.exchange.entered[request.context.request_id]
                self.sim.pauses.check(host, item.ns, item.topic, self.checks.spec_of(item.id).tenant or "", "delivers")
            received(items)

        if not acks and self.rng.random() < 0.9:
            request: Any = idl.DequeueRequest(ns, wants, lease_ms=lease_ms, wait_ms=wait_ms)
            self.send("Dequeue", request, timeout_ms, done, wait_ms, host)
            return
        for item_id, token in acks:
            self.checks.asked("ack", item_id, token)
        self.checks.counts["ack and dequeue"] += 1
        entries = [idl.AckItem(*one) for one in acks]
        request = idl.AckAndDequeueRequest(ns, entries, wants, lease_ms=lease_ms, wait_ms=wait_ms)
        settle_ms = self.sim.profile.config.host.confirm_ms
        self.send("AckAndDequeue", request, timeout_ms, done, max(settle_ms, wait_ms), host)

    def handle(self, ns: str, item_id: int, token: int) -> None:
        kind = self.rng.choices(["ack", "nack", "release", "extend", ""], [6, 1, 1, 1, 1])[0]
        if kind == "ack" and self.at is None and self.rng.random() < 0.5:
            self._acks.setdefault(ns, []).append((item_id, token))
        elif kind:
            self.settle(kind, item_id, token)
        if kind == "extend":
            self._after(400, lambda: self.settle("ack", item_id, token))

    def settle(self, kind: str, item_id: int, token: int) -> None:
        self.checks.asked(kind, item_id, token, 100)
        if kind == "ack":
            request = idl.AckRequest([idl.AckItem(item_id, token)])
        elif kind == "extend":
            request = idl.ExtendLeaseRequest([idl.ExtendItem(item_id, token, 100)])
        elif kind == "delete":
            request = idl.DeleteItemsRequest([item_id])
        else:
            delay_ms = self.rng.choice([None, 100]) if kind == "nack" else None
            release = True if kind == "release" else None
            request = idl.NackRequest([idl.NackItem(item_id, token, delay_ms=delay_ms, release=release)])

        def done(response: Any, error: FoqsError | None) -> None:
            if error is None:
                one = response.outcomes[0].error
                error = None if one is None else _error(one)
            self.checks.answered(kind, item_id, error)

        self.send(_METHODS[kind], request, self.rng.choice([200, 3_000]), done)

    # ------------------------------------------------------------------------------------- operators

    def _operate(self) -> None:
        if not self.producing:
            return
        rng, stored = self.rng, self.checks.left()
        what = rng.random()
        if stored and what < 0.4:
            self._get(rng.choice(stored))
        elif stored and self.sim.profile.tenants and rng.random() < 0.7:
            self._change(rng.sample(stored, min(len(stored), rng.randint(1, 3))))
        elif stored and what < 0.5:
            self.settle("delete", rng.choice(stored), 0)
        elif self._held and what < 0.7:
            self.settle(rng.choice(["ack", "nack", "extend", "release"]), *rng.choice(self._held))
        else:
            self._list(FREE, rng.choice(self.sim.profile.topics))
        self._after(150, self._operate)

    def _change(self, ids: Sequence[int]) -> None:
        rng = self.rng
        delay_ms = rng.choice([None, 0, 10, 400])
        priority = rng.choice([-3, 0, 4] if delay_ms is None else [None, -3, 4])
        timeout_ms = rng.choice([200, 3_000])
        wanted = [self.checks.asked_change(one, priority, delay_ms, timeout_ms + _SLACK_MS) for one in ids]

        def done(response: Any, error: FoqsError | None) -> None:
            for at, item_id in enumerate(ids):
                one = None if error is not None else response.outcomes[at].error
                self.checks.changed(item_id, wanted[at], error if one is None else _error(one))

        self.send("ChangeItems", idl.ChangeItemsRequest(list(ids), priority, delay_ms), timeout_ms, done)

    def _get(self, item_id: int) -> None:
        def done(response: Any, error: FoqsError | None) -> None:
            self.checks.answered("get", item_id, error)
            if error is None and response.item.id != item_id:
                broken(1, f"a get of {item_id} returned {response.item.id}")

        self.send("GetItem", idl.GetItemRequest(item_id), self.rng.choice([200, 3_000]), done)

    def _list(self, ns: str, topic: str) -> None:
        def done(response: Any, error: FoqsError | None) -> None:
            for item in response.items if response is not None else ():
                if (item.ns, item.topic) != (ns, topic):
                    broken(1, f"a list of {ns} {topic} returned an item of {item.ns} {item.topic}")

        self.send("ListItems", idl.ListItemsRequest(ns, topic, limit=3), self.rng.choice([200, 3_000]), done)

    # ------------------------------------------------------------------------------------- at the end

    def recall(self, specs: Sequence[Spec], left: dict[Spec, None]) -> None:
        """Enqueue again every key that is stored, until the answer is its first item."""

        def answered(spec: Spec, outcome: int | FoqsError) -> None:
            if isinstance(outcome, int):
                left.pop(spec, None)
            elif outcome.code in (Code.UNAVAILABLE, Code.OVERLOADED, Code.OUTCOME_UNKNOWN):
                self._after(100, lambda: self.enqueue([spec], answered))
            else:
                broken(6, f"key {spec.key} was refused: {outcome}")

        for spec in specs:
            left[spec] = None
            self.enqueue([spec], answered)


def _error(error: Any) -> FoqsError:
    return from_code(error.code, error.message, error.retry_after_ms)


def _outcome(one: Any) -> int | FoqsError:
    if one.error is not None:
        return _error(one.error)
    return one.id if one.id else Unavailable("no id")
