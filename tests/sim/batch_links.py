"""The messages about batches between shards and homes: lost, late and repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foqs.buffers.item_batches import Question, Report, Told
from foqs.engine import batch_homes, batch_members
from foqs.errors import FoqsError, NotServed, Unavailable
from foqs.idl import idl
from foqs.peers.batch_messages import BatchMessages, report_of
from foqs.rpc.peer_caller import Done
from tests.sim.records import broken

if TYPE_CHECKING:
    from tests.sim.member import Member

_LOST_MS = 1_000


class Links:
    """As `BatchLinks`, of one host."""

    def __init__(self, member: Member) -> None:
        self.member, self.sim = member, member.sim
        self.rng = self.sim.rng
        self.open: Counter[int] = Counter()  # reports without an outcome, by batch
        self._messages = BatchMessages(
            member.engine, member.neighbour.routing, self._ask, lambda do: member.later(self._trip_ms(), do)
        )
        self.all_shards = self._messages.all_shards

    def _trip_ms(self) -> int:
        return 0 if self.sim.healing else self.rng.choice((0, 0, 0, 5, 20))

    def tell_homes(self, reports: list[Report], told: Told) -> None:
        at = 1.0 if self.sim.healing else self.rng.random()
        told = self._checked(reports, told)
        self.sim.note("report", self.member.name, reports, round(at, 2))
        if at < 0.05:
            self._give_up(reports, told)
        elif at < 0.1:
            self._give_up(reports, told)
            self._messages.tell_homes(reports, self._nobody)
        elif at < 0.15:
            self.member.later(self.rng.choice((300, 2_000)), lambda: self._messages.tell_homes(reports, told))
        elif at < 0.2:
            self._messages.tell_homes(reports, told)
            self.member.later(self.rng.choice((5, 500)), lambda: self._messages.tell_homes(reports, self._nobody))
        elif at < 0.23:  # a late copy, after the sender gave up
            self._give_up(reports, told)
            self.member.later(2_000, lambda: self._messages.tell_homes(reports, self._nobody))
        else:
            self._messages.tell_homes(reports, told)

    def _checked(self, reports: list[Report], told: Told) -> Told:
        """A batch that has ended or is cancelled takes no members, nor does one of another namespace."""
        model = self.sim.ledger.batches
        refused = [one.ns is not None and model.refuses_members(one.part.batch, one.ns) for one in reports]

        self.open.update(one.part.batch for one in reports)

        def check(outcomes: list[FoqsError | None]) -> None:
            self.open.subtract(one.part.batch for one in reports)
            for one, outcome, never in zip(reports, outcomes, refused, strict=True):
                if never and outcome is None:
                    broken(22, f"{one} was accepted")
            told(outcomes)

        return check

    def _nobody(self, _: list[FoqsError | None]) -> None:
        """The answer is lost."""

    def _give_up(self, reports: list[Report], told: Told) -> None:
        lost = Unavailable("no answer in time")
        self.member.later(_LOST_MS, lambda: told([lost] * len(reports)))

    def ask_members(self, number: int, questions: list[Question], forgotten: Callable[[list[int]], None]) -> None:
        at = 1.0 if self.sim.healing else self.rng.random()
        self.sim.note("question", self.member.name, number, questions, round(at, 2))
        if at < 0.1:
            return
        if at < 0.2:
            self._messages.ask_members(number, questions, lambda _: None)
        elif at < 0.3:
            self.member.later(1_000, lambda: self._messages.ask_members(number, questions, forgotten))
        else:
            self._messages.ask_members(number, questions, forgotten)
            if at < 0.4:
                self._messages.ask_members(number, questions, forgotten)

    def _ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        """Ask another host."""
        sim, open_ = self.sim, [done]

        def answer(response: Any, error: FoqsError | None = None) -> None:
            if open_:
                open_.clear()
                done(response, error)

        def reply(response: Any, error: FoqsError | None = None) -> None:
            if sim.healing or self.rng.random() > 0.05:
                self.member.later(self._trip_ms(), lambda: answer(response, error))

        def arrive() -> None:
            owner = next(member for member in sim.members if member.name == address)
            if not owner.alive:
                reply(None, Unavailable("the host does not answer"))
            elif method == "ReportMembers":
                batch_homes.take(
                    owner.engine.state, request.shard, list(map(report_of, request.reports)),
                    lambda outcomes: reply(idl.ReportMembersResponse(list(map(_error_of, outcomes)))),
                )  # fmt: skip
            else:
                asked = [Question(one.batch, bool(one.cancel), bool(one.forget)) for one in request.questions]
                try:
                    batch_members.ask(
                        owner.engine.state, request.shard, asked, lambda gone: reply(idl.AskMembersResponse(gone))
                    )
                except NotServed as error:
                    reply(None, error)

        if sim.healing or self.rng.random() > 0.05:
            sim.soon(self._trip_ms(), arrive)
        self.member.later(timeout_ms, lambda: answer(None, Unavailable("no answer in time")))


def _error_of(error: FoqsError | None) -> Any:
    return idl.ItemError() if error is None else idl.ItemError(error.code, error.message)
