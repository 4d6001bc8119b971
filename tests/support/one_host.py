"""One host in memory: its handlers, quotas and forwarding. A test moves its databases, its clocks and the other hosts.

A lone host has no routing. A host with a routing is `name` of a cluster, at "<name>:1"; the test answers its requests
to peers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from foqs.api.handlers import Handlers
from foqs.api.host import Host
from foqs.bounds import Limits
from foqs.config.schema import QuotaKeys, QuotasSection, ServerSection
from foqs.engine.state import Callbacks
from foqs.errors import FoqsError, Invalid, from_code
from foqs.hooks.protocol import Failed, HookKey
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl
from foqs.ids import HASH_SLOTS
from foqs.peers.coordinator import HashSlotOwners, LoneHashSlotOwners
from foqs.peers.forwarded import Done
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.lending import Lending
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.settings_sync import HostSettings
from foqs.peers.tenant_shares import TenantShares
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Route, Routing, make_routing
from tests.api.wire import spec
from tests.engine.laboratory import Laboratory
from tests.peers.exchanges import Log, Sent
from tests.policies.memory import MemorySettings
from tests.sim_peers.exchange import Call as SimulatedCall
from tests.support.scripts import Functions
from tests.support.timers import TestTimers

HANDOVER_MS = 5_000
ADDRESS = "a:1"
FORWARDED = idl.RequestContext(hops=1, peer_version=1)
"""The context of a request that another host forwarded."""


def routing_of(
    owners: Mapping[int, str], *hosts: str, slots: Slots | None = None, unowned: Sequence[int] = ()
) -> Routing:
    """The routing in which each host listens at "<name>:1"; `hosts` live without a shard, and `unowned` are shards
    without an owner. The slots of keys are on the first shard by default."""
    routes = {number: Route(f"{host}:1", 1, host) for number, host in owners.items()}
    living = {host: f"{host}:1" for host in ("a", *owners.values(), *hosts)}
    return make_routing(routes, living, unowned, slots or Slots(0, (min(owners, default=0),) * HASH_SLOTS, {}, 1))


class Call(SimulatedCall):
    """A request of a caller, and the answer."""

    def __init__(self, method: str, request: Any) -> None:
        super().__init__(method, request, self._take)
        self.answers: list[Any] = []
        self.certified: tuple[str, ...] = ()
        self.doubts: list[tuple[int, str]] = []
        self.trusted = False
        self.tries = 0
        """Answers that the host gave, those after a loss of the connection included."""

    def reply(self, response: Any) -> bool:
        self.tries += 1
        return super().reply(response)

    def _take(self, response: Any, error: FoqsError | None) -> None:
        self.answers.append(response if error is None else error)

    @property
    def answer(self) -> Any:
        """The response or the error; fails while there is none."""
        (answer,) = self.answers
        return answer

    def doubt(self, items: int, reason: str) -> None:
        self.doubts.append((items, reason))

    def trust(self) -> None:
        self.trusted = True


class OneHost(Laboratory):
    """`sent` has the requests to other hosts that are not answered; `shared` counts the calls for owners of slots.
    `failed` has the calls of `scripts` that failed."""

    def __init__(
        self,
        *numbers: int,
        routing: Routing | None = None,
        quotas: Mapping[str, QuotaKeys] | None = None,
        limits: Limits | None = None,
        name: str = "a",
    ) -> None:
        self.name = name
        self.routing = routing
        self.limits = limits or Limits()
        self.monotonic_ms = 5_000
        self.sent: list[Sent] = []
        self.refused: list[tuple[Any, ...]] = []
        self.cut: list[str] = []
        self.log = Log()
        self.shared = 0
        self.quiet = False
        self.arrived: list[Mapping[int, SlotMove]] = []
        self.service: Handlers | None = None
        self.forwarder: Forwarder | None = None
        self._turn: list[Callable[[], None]] = []
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self.scripts = Functions(self._turn.append)
        self.news = ReadyPublisher(lambda key: self.engine.ready(key), 1_000_000, self._turn.append, self._later)  # noqa: PLW0108
        callbacks = Callbacks(
            served=self._served,
            became_ready=self.news.became_ready,
            ready_again=self.news.again,
            left_waiting=self._left_waiting,
            slots_written=self._slots_written,
            tell_keys=lambda keys, told: self.forwarder.key_changes.tell(keys, told),  # noqa: PLW0108
            tokens_wanted=lambda: self.lending.throttles.wanted(),  # noqa: PLW0108
            ask_script=lambda attempt, decided: self.hooks.ask(attempt, decided),  # noqa: PLW0108
            monotonic_ms=lambda: self.monotonic_ms,
        )
        super().__init__(
            *numbers,
            callbacks=callbacks,
            shards_elsewhere=routing is not None,
            sections={"server": ServerSection(id=name), "quotas": QuotasSection(namespaces=dict(quotas or {}))},
        )
        self._connect()

    def _connect(self) -> None:
        """Make the parts around the engine, as `foqs.server.node` does."""
        now_ms = lambda: self.now_ms  # noqa: E731
        timers = TestTimers(now_ms, lambda: self.monotonic_ms, self._turn.append, self._later)
        if self.routing is not None:
            self.forwarder = Forwarder(
                self.engine, self._routing, self._ask, self.cut.append, timers, self.log, handover_ms=HANDOVER_MS,
                slots_arrived=self.arrived.append, share_slots=self._share_slots,
            )  # fmt: skip
            owners = HashSlotOwners(self.engine, timers, self.forwarder.slot_moves.adopt)
        else:
            self.forwarder = LoneForwarder(self.engine, lambda: ADDRESS, timers, self.log)
            owners = LoneHashSlotOwners(self.engine, timers)
        self.lending = Lending(self.engine, self.forwarder, owners, timers)
        if self.routing is not None:
            self.lending.coordinator.watch()
        self.shares = TenantShares(self.engine, self.forwarder, timers)
        self.failed: list[tuple[HookKey, Failed]] = []
        self.hooks = TopicHooks(
            self.engine.state.policies, self.scripts, now_ms, lambda: self.monotonic_ms, lambda: 1_000,
            lambda hook, failed: self.failed.append((hook.key, failed)),
        )  # fmt: skip
        self.settings = HostSettings(self.engine)
        self.settings_store = MemorySettings(self._turn.append)
        self.service = Handlers(
            Host(self.engine, self.limits, now_ms, lambda: ADDRESS, self.forwarder),
            self.news, self.lending, self.shares, self.settings, self.settings_store, self.hooks, lambda: self.quiet,
            timers,
        )  # fmt: skip
        self.service.scheduler.begin(lambda *refused: self.refused.append(refused))
        self.methods = self.service.handlers()
        if isinstance(self.forwarder, LoneForwarder):
            self.forwarder.share_slots()
        self.service.routing_changed()
        self.run()

    def _routing(self) -> Routing:
        assert self.routing is not None
        return self.routing

    def _share_slots(self) -> None:
        self.shared += 1

    def _slots_written(self) -> None:
        if isinstance(self.forwarder, LoneForwarder):
            self.forwarder.share_slots()

    def _served(self) -> None:
        if self.service is not None:
            self.service.routing_changed()

    def _left_waiting(self, key: tuple[str, str]) -> None:
        if self.forwarder is not None:
            self.forwarder.fetch(key)

    def _later(self, after_ms: int, do: Callable[[], None]) -> None:
        self._timers.append((self.monotonic_ms + after_ms, do))

    def _ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        self.sent.append(Sent(address, method, request, done))

    # ------------------------------------------------------------------------------------- what a test does

    def call(self, method: str, within: Container[str] | None = None, **fields: Any) -> Call:
        """Give the host a request, and run until nothing is left to do now."""
        call = Call(method, getattr(idl, f"{method}Request")(**fields))
        call.within = within
        try:
            self.methods[method](call)
        except FoqsError as error:
            call.raised(None, error)
        self.run()
        return call

    def ask(self, method: str, **fields: Any) -> Any:
        """The answer, or the error, to a request that is answered at once."""
        return self.call(method, **fields).answer

    def begin(self, method: str, **fields: Any) -> Call:
        """As `call`, before any database or timer does anything."""
        call = Call(method, getattr(idl, f"{method}Request")(**fields))
        self.methods[method](call)
        return call

    def run(self) -> None:
        """Turns of the event loop, and all batches, until nothing is left to do now."""
        while True:
            turn, self._turn[:] = list(self._turn), []
            for job in turn:
                job()
            if sent := self.send():
                for shard, batch in sent:
                    self.arrive(shard, batch)
            elif not (self._turn or self._left_to_do()):
                return

    def _left_to_do(self) -> bool:
        engine = self.engine
        return bool(
            engine.state.slices.next_slice or engine.state.dirty or engine.state.due or engine.state.slices.long_work
        )

    def wait(self, by_ms: int) -> None:
        """Let time pass on both clocks, and call the timers that are due."""
        self.now_ms += by_ms
        self.monotonic_ms += by_ms
        self.ring()
        self.run()
        self.engine.tick(self.now_ms)
        self.run()

    def ring(self) -> None:
        """Call the timers that are due."""
        due = [do for at_ms, do in self._timers if at_ms <= self.monotonic_ms]
        self._timers = [(at_ms, do) for at_ms, do in self._timers if at_ms > self.monotonic_ms]
        for do in due:
            do()

    def learn(self, routing: Routing) -> None:
        """Another routing, as the host's membership passes it on."""
        self.routing = routing
        assert self.service is not None
        self.service.routing_changed()
        self.run()

    def to(self, method: str) -> list[Sent]:
        """The open requests of a method to other hosts."""
        return [sent for sent in self.sent if sent.method == method]

    def reply(self, method: str, outcome: Any) -> Any:
        """Answer the oldest open request of a method to another host: with an error, or a response. Return the
        request."""
        sent = self.to(method)[0]
        self.sent.remove(sent)
        error = outcome if isinstance(outcome, FoqsError) else None
        sent.done(None if error is not None else outcome, error)
        self.run()
        return sent.request


# ------------------------------------------------------------------------------------------ requests of a test


def kinds(response: Any) -> list[type | None]:
    """The error of each outcome; None for a success."""
    return [one.error and type(from_code(one.error.code, "", one.error.retry_after_ms)) for one in response.outcomes]


def messages(response: Any) -> list[str | None]:
    return [one.error and one.error.message for one in response.outcomes]


def put(host: OneHost, *payloads: bytes, **fields: Any) -> list[int]:
    response = host.ask("Enqueue", ns="n", items=[spec("t", payload, **fields) for payload in payloads])
    return [outcome.id for outcome in response.outcomes]


def take(host: OneHost, count: int = 10, **fields: Any) -> Any:
    return host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", count)], **fields)


def refused(host: OneHost, method: str, **fields: Any) -> str:
    answer = host.ask(method, **fields)
    assert type(answer) is Invalid, answer
    return answer.message
