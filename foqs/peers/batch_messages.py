"""Reports of shards to the homes of batches, and the questions of homes to shards, between the hosts that own them.

A message may be lost, or arrive late: a report that comes again changes nothing, and both sides ask again (see
`foqs.engine.batch_members` and `foqs.engine.batch_homes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

from foqs.buffers.item_batches import Question, Report, Told
from foqs.engine import batch_homes, batch_members
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, LostReply, NotFound, NotServed, item_error
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.item_batch import NO_BATCH, BatchPart, Counts
from foqs.peers.forwarded import Ask
from foqs.shardmgr.routing import Routing

_ANSWER_MS = 5_000


class BatchMessages:
    """`soon` calls a function at the next turn of the event loop: a shard may ask another one of this host."""

    def __init__(
        self, engine: Engine, routing: Callable[[], Routing], ask: Ask, soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._engine = engine
        self._routing = routing
        self._ask = ask
        self._soon = soon

    def all_shards(self) -> Set[int]:
        state = self._engine.state
        return self._routing().shards if state.shards_elsewhere else state.shards.keys()

    def tell_homes(self, reports: Sequence[Report], told: Told) -> None:
        """Send each report to the home of its batch, here or on another host."""
        outcomes: list[FoqsError | None] = [None] * len(reports)
        homes: dict[int, list[int]] = defaultdict(list)
        for at, report in enumerate(reports):
            homes[shard_of(report.part.batch)].append(at)
        left = len(homes)

        def answered(places: Sequence[int], some: Sequence[FoqsError | None]) -> None:
            nonlocal left
            for at, outcome in zip(places, some, strict=True):
                outcomes[at] = outcome
            left -= 1
            if not left:
                told(outcomes)

        for number, places in homes.items():
            self._tell_home(number, [reports[at] for at in places], partial(answered, places))

    def _tell_home(self, number: int, reports: list[Report], told: Told) -> None:
        routing, state = self._routing(), self._engine.state
        owner = routing.owners.get(number)
        if number in state.shards:
            self._soon(lambda: batch_homes.take(state, number, reports, told))
        elif owner is not None:
            request = idl.ReportMembersRequest(number, list(map(_as_message, reports)))
            self._ask(owner.address, "ReportMembers", request, _ANSWER_MS, partial(_told, told, len(reports)))
        else:
            error = NotFound(NO_BATCH) if self._is_removed(number) else NotServed()
            self._soon(lambda: told([error] * len(reports)))

    def ask_members(
        self, number: int, questions: list[Question], forgotten: Callable[[list[int]], None]
    ) -> None:  # fmt: skip
        """Send questions to a shard. The members of a shard that does not exist are forgotten."""
        routing = self._routing()
        owner = routing.owners.get(number)
        if number in self._engine.state.shards:
            self._soon(lambda: self._ask_here(number, questions, forgotten))
        elif owner is not None:
            request = idl.AskMembersRequest(number, [idl.MemberQuestion(*question) for question in questions])
            self._ask(owner.address, "AskMembers", request, _ANSWER_MS, partial(_answered, forgotten))
        elif self._is_removed(number):
            self._soon(lambda: forgotten([question.batch for question in questions if question.forget]))

    def _is_removed(self, number: int) -> bool:
        """Return True if the cluster has no such shard. A host that does not know the cluster yet cannot say so."""
        shards = self.all_shards()
        return bool(shards) and number not in shards

    def _ask_here(
        self, number: int, questions: list[Question], forgotten: Callable[[list[int]], None]
    ) -> None:  # fmt: skip
        try:
            batch_members.ask(self._engine.state, number, questions, forgotten)
        except NotServed:
            return  # the home asks again


def _as_message(report: Report) -> Any:
    part = report.part
    counts = idl.BatchCounts(*part.counts)
    return idl.MemberReport(
        part.batch, part.shard, part.epoch, part.serial, counts, list(part.failed_ids), report.ns
    )  # fmt: skip


def report_of(given: Any) -> Report:
    """Return what `_as_message` was given."""
    names = Counts._fields
    counts = Counts(*(getattr(given.counts, name) for name in names))
    part = BatchPart(given.batch, given.shard, given.epoch, given.serial, counts, tuple(given.failed_ids or ()))
    return Report(part, given.ns)


def _told(told: Told, count: int, response: Any, error: FoqsError | None) -> None:
    outcomes = () if response is None else response.outcomes or ()
    if error is not None or len(outcomes) != count:
        told([error or LostReply("the answer has not an outcome for each report")] * count)
    else:
        told([item_error(one) if one.code else None for one in outcomes])


def _answered(forgotten: Callable[[list[int]], None], response: Any, error: FoqsError | None) -> None:
    if error is None and response is not None and response.forgotten:
        forgotten(list(response.forgotten))
