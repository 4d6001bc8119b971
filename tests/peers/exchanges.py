"""An exchange without a network: the test sees each request to another host, and answers it."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from foqs.errors import FoqsError, LostReply
from foqs.idl import idl
from foqs.ids import HASH_SLOTS
from foqs.peers.forwarded import Done, Exchange
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Route, make_routing
from tests.support.timers import TestTimers

HANDOVER_MS = 5_000
DEADLINE_MS = 60_000
LOST = LostReply("lost")


def ids(*shards: int) -> list[int]:
    """Return an item's id for each of `shards`."""
    return [shard << 48 | at for at, shard in enumerate(shards, 1)]


class Sent(NamedTuple):
    address: str
    method: str
    request: Any
    done: Done


class Log:
    """Counts the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        self.lines.append("reply_lost")

    def not_sent(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        self.lines.append("not_sent")

    def unrouted(self, method: str, request: Any, items: int) -> None:
        self.lines.append("unrouted")


class Incoming:
    """A client's request; `answers` has the responses and errors."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.answers: list[Any] = []

    def reply(self, response: Any) -> bool:
        self.answers.append(response)
        return True

    def fail(self, error: FoqsError) -> bool:
        self.answers.append(error)
        return True


class Rig:
    """The exchange of host "a", which has no shards; `owners` maps shards to hosts, "b" listens at "b:1"."""

    def __init__(self, owners: Mapping[int, str], shards: tuple[int, ...] = ()) -> None:
        self.now_ms = 1_000
        self.sent: list[Sent] = []
        self.turn: list[Callable[[], None]] = []
        self.rung: list[tuple[int, Any]] = []
        self.log = Log()
        state = SimpleNamespace(
            shards={},
            shards_elsewhere=True,
            config=SimpleNamespace(server=SimpleNamespace(id="a")),
            counters=SimpleNamespace(held=0, forwarded=0),
            deadlines=SimpleNamespace(push=lambda at_ms, what: self.rung.append((at_ms, what))),
            alarm=lambda at_ms: None,
        )
        self.engine: Any = SimpleNamespace(state=state)
        self.route(owners, shards)
        self.exchange = Exchange(
            self.engine, lambda: self.routing, self._ask, TestTimers(lambda: self.now_ms, soon=self.turn.append),
            self.log, handover_ms=HANDOVER_MS,
        )  # fmt: skip

    def route(self, owners: Mapping[int, str], shards: tuple[int, ...] = ()) -> None:
        routes = {number: Route(f"{host}:1", 1, host) for number, host in owners.items()}
        numbers = sorted({*owners, *shards})
        slots = Slots(shards=(numbers[0],) * HASH_SLOTS, stamp=1)
        self.routing = make_routing(routes, {host: f"{host}:1" for host in owners.values()}, numbers, slots)

    def move(self, owners: Mapping[int, str], shards: tuple[int, ...] = ()) -> None:
        """Change the routing, as the exchange's host hears of it."""
        self.route(owners, shards)
        self.exchange.changed()
        self.exchange.route_held()

    def _ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        self.sent.append(Sent(address, method, request, done))

    def run(self) -> None:
        """One turn of the event loop."""
        turn, self.turn[:] = list(self.turn), []
        for job in turn:
            job()

    def wait(self, by_ms: int) -> None:
        """Let time pass, and call the timers that are due."""
        self.run()
        self.now_ms += by_ms
        due = [what for at_ms, what in self.rung if at_ms <= self.now_ms]
        self.rung = [(at_ms, what) for at_ms, what in self.rung if at_ms > self.now_ms]
        for what in due:
            if not what.done:
                what.timed_out(self.engine.state.shards)
        self.run()

    def timers(self) -> int:
        return sum(not what.done for _, what in self.rung)

    def answer(self, outcome: Any) -> None:
        """Answer the oldest request: an error, or a response."""
        error = outcome if isinstance(outcome, FoqsError) else None
        self.sent.pop(0).done(None if error is not None else outcome, error)
        self.run()


def refused(*errors: FoqsError | None) -> Any:
    """The answer to an ack with these outcomes."""
    made = [error and idl.ItemError(int(error.code), error.message, error.retry_after_ms) for error in errors]
    return idl.AckResponse([idl.ItemOutcome(error) for error in made])
