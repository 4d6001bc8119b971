"""Acks that go with a dequeue in one request.

The calls by which a consumer gives leased items back or keeps them longer, and by which an operator takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from foqs import second_answer
from foqs.bounds import Limits
from foqs.client import arguments, methods
from foqs.client.arguments import Entries, checked
from foqs.client.caller import Caller
from foqs.client.connection import Address
from foqs.client.guard import SafeLog
from foqs.client.items import Items, Leased, Nack, Released
from foqs.client.methods import ACK_AND_DEQUEUE
from foqs.client.places import Ask, Places, Share
from foqs.client.requests import First, Requests, Split, one_of
from foqs.client.router import Router, Topics
from foqs.client.routes import Part
from foqs.errors import FoqsError, OutcomeUnknown, item_error, named
from foqs.idl import idl
from foqs.second_answer import END_ITEM, LOOK, Policy, Verdict, judge, last_word
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod

log = SafeLog()

STAY_S = 0.1
"""Time for which one host of several is asked: its items are acked at the same host. Then another one has its turn."""
_MOST = Limits().request_items
_AGAIN = (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL)


class Taken(NamedTuple):
    """`outcomes`: None for each ack that succeeded, else its error, in order. `error` is why there are no items; None
    where no item was ready."""

    outcomes: list[FoqsError | None]
    items: Items
    error: FoqsError | None


class AckDequeue:
    """Thread-safe. Each call is one request, and is not repeated.

    The acks of one request belong to the host that is asked for items, as far as the client knows the owners."""

    def __init__(
        self,
        caller: Caller,
        router: Router,
        topics: Topics,
        places: Places,
        namespace: str,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._caller = caller
        self._router = router
        self._topics = topics
        self._places = places
        self._namespace = namespace
        self._clock = clock
        self._stay: Address | None = None
        self._stay_until = 0.0

    def part(self, acks: Sequence[Leased], topics: Collection[str], *, first: bool = True) -> Part:
        """Return the hosts to ask for items of `topics`, and the indices of the acks to send with that request: none of
        more than a request holds, because two parts would answer one lease differently. `first`: see `Topics.having`.
        """
        if len(acks) > _MOST:
            return Part((), ())
        routes = self._router.routes
        if routes.alone:
            return Part(self._router.order(), range(len(acks)))
        having = self._topics.having(topics, first=first)
        now = self._clock()
        stay = self._stay
        if stay is None or now >= self._stay_until or (having and stay not in having):
            to = self._router.order(having)
            self._stay, self._stay_until = to[0], now + STAY_S
        else:
            to = self._router.order((stay,))
        owners = [routes.owner(item.id) for item in acks]
        return Part(to, [at for at, owner in enumerate(owners) if owner is None or owner == to[0]])

    def ask(
        self, part: Part, acks: Sequence[Leased], wants: Mapping[str, int], deadline: float, *,
        lease_ms: int | None, max_bytes: int | None = None, worker: str | None = None, begins: int | None = None,
        holding: Share | None = None, most: int | None = None,
    ) -> Taken:  # fmt: skip
        """Send one request with the acks of `part`; `outcomes` are theirs. Raises the error of the whole request, such
        as LostReply (each ack may have been carried out)."""
        entries = [idl.AckItem(id=acks[at].id, lease=acks[at].lease) for at in part.asked]
        acked = [acks[at] for at in part.asked]
        places = None if holding is None else self._places.ask(wants, holding, wait=False, acked=acked)
        request = idl.AckAndDequeueRequest(
            ns=self._namespace, acks=entries, wants=topic_counts(wants, places), lease_ms=lease_ms,
            max_bytes=max_bytes, worker=worker, begins=begins, most=most_of(wants, most),
        )  # fmt: skip
        self._router.begin()
        response = None
        try:
            asked = self._caller.send(ACK_AND_DEQUEUE, request, deadline, repeatable=True, to=part.to)
            response = self._caller.receive(asked)
        finally:
            if places is not None:
                places.end(response)
        outcomes = response.outcomes or []
        if len(outcomes) != len(entries):
            raise OutcomeUnknown(f"the server gave {len(outcomes)} outcomes for {len(entries)} acks")
        errors = [None if one.error is None else named(item_error(one.error), asked.request_id) for one in outcomes]
        refused = None if response.error is None else named(item_error(response.error), asked.request_id)
        return Taken(errors, leased_items(response), refused)


def topic_counts(counts: Mapping[str, int], asked: Ask | None) -> list[Any]:
    """Return TopicCounts. `asked`: what the process asks for and reports, None if it does not report."""
    if asked is None:
        return [idl.TopicCount(topic=topic, count=count) for topic, count in counts.items()]
    return [idl.TopicCount(topic, count, asked.holding[topic]) for topic, count in asked.counts.items()]


def most_of(counts: Mapping[str, int], most: int | None) -> int | None:
    """Return the bound on the items of all topics for a request, None if the request needs none."""
    return most if most and len(counts) > 1 else None


def leased_items(response: Any) -> Items:
    """Return the items of a dequeue, and log the ids of doubtful ones."""
    if response.doubtful:
        log.warning("at-most-once items that come later or never: %s", response.doubtful)
    items = Items(response.items or ())
    if not items:
        items.reason, items.retry_after_ms = response.reason, response.retry_after_ms
    return items


def ack_then_dequeue(
    acks: Sequence[Leased],
    part: Part,
    ask: Callable[[Part], Taken],
    ack: Callable[[Sequence[Leased]], list[FoqsError | None]],
    dequeue: Callable[[], Items],
) -> Taken:
    """Send the acks of `part` by `ask`, once, and the other ones by `ack`; `dequeue` if `ask` brought no items."""
    outcomes: list[FoqsError | None] = [None] * len(acks)
    doubtful: set[int] = set()

    def by_themselves(left: Sequence[int]) -> None:
        for at, error in zip(left, ack([acks[at] for at in left]) if left else (), strict=True):
            outcomes[at] = _after_doubt(error) if at in doubtful else error

    asked = set(part.asked)
    by_themselves([at for at in range(len(acks)) if at not in asked])
    taken = Taken([], Items(), None)
    if part.asked:
        left = list(part.asked)
        try:
            taken = ask(part)
        except FoqsError as error:  # it may be about the items that are asked for
            if judge(END_ITEM, error, doubtful=False) is Verdict.AGAIN_DOUBTFUL:
                doubtful.update(left)
        else:
            left.clear()
            for at, one in zip(part.asked, taken.outcomes, strict=True):
                outcomes[at] = one
                verdict = None if one is None else judge(END_ITEM, one, doubtful=False)
                if verdict in _AGAIN and not taken.items:
                    left.append(at)
                if verdict is Verdict.AGAIN_DOUBTFUL:
                    doubtful.add(at)
        by_themselves(left)
    if taken.items or (taken.error is not None and judge(LOOK, taken.error, doubtful=False) not in _AGAIN):
        return Taken(outcomes, taken.items, taken.error)
    try:
        return Taken(outcomes, dequeue(), None)
    except FoqsError as error:
        return Taken(outcomes, Items(), bare(error))


def _after_doubt(error: FoqsError | None) -> FoqsError | None:
    """Return the outcome of an ack that is repeated after one whose outcome is unknown."""
    verdict = Verdict.DONE if error is None else judge(END_ITEM, error, doubtful=True)
    if error is None or verdict is Verdict.DONE:
        return None
    return error if verdict is Verdict.FAILED else last_word(END_ITEM, error, doubtful=True)


class LeaseMethods:
    """A part of `Client`."""

    namespace: str
    _requests: Requests
    _by_id: Callable[[Sequence[Any]], Split]

    @checked()
    def nack(
        self,
        item: Leased,
        *,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        reason: str | None = None,
        failed: bool = False,
        reject: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Gives the item back, to be delivered again after `delay_ms` (an at-most-once item is dropped).
        `metadata` replaces the item's: partial progress for the next attempt. `failed`, `reject`: see `Nack`. Raises
        StaleLease or NotFound like `ack`, and OutcomeUnknown when a reply was lost and the lease is over now.
        """
        nack = Nack.of(item, delay_ms=delay_ms, metadata=metadata, reason=reason, failed=failed, reject=reject)
        one_of(self.nack_many((nack,), timeout_ms=timeout_ms))

    @checked()
    def nack_many(self, nacks: Iterable[Nack], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`nack` for many, each with its own delay and metadata.

        >>> client.nack_many(Nack.of(item, delay_ms=1_000) for item in items)   # doctest: +SKIP
        [None, None]
        """
        return self._each(methods.NACK, second_answer.NACK, Entries(nacks, arguments.nack_entry), timeout_ms)

    @checked()
    def release(self, item: Leased, *, timeout_ms: int | None = None) -> None:
        """Gives back an item that was not begun: no delay, the attempt is not counted, at-most-once items as
        well.
        """
        one_of(self.release_many((item,), timeout_ms=timeout_ms))

    @checked()
    def release_many(self, items: Iterable[Leased], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`release` for many."""
        return self._each(methods.NACK, second_answer.RELEASE, Entries(items, arguments.release_entry), timeout_ms)

    @checked()
    def extend(self, item: Leased, lease_ms: int | None = None, *, timeout_ms: int | None = None) -> None:
        """The lease then ends `lease_ms` from now (default: the duration it was given at first). Raises
        StaleLease or NotFound when it is lost.
        """
        one_of(self.extend_many((item,), lease_ms, timeout_ms=timeout_ms))

    @checked()
    def extend_many(
        self, items: Iterable[Leased], lease_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """`extend` for many."""
        extensions = Entries(items, partial(arguments.extend_entry, lease_ms=lease_ms))
        return self._each(methods.EXTEND, second_answer.EXTEND, extensions, timeout_ms)

    @checked()
    def begun_many(
        self, items: Iterable[Leased], *, begun: bool = True, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """Says whether work on leased items was begun: the attempt of an item that was not begun is not counted if its
        lease ends by time. The leases end when they would have. An item of which nothing was said counts as begun.
        """
        marks = Entries(items, partial(arguments.extend_entry, begun=begun))
        return self._each(methods.EXTEND, second_answer.EXTEND, marks, timeout_ms)

    def _each(
        self, method: RemoteMethod, policy: Policy, given: Entries, timeout_ms: int | None, first: First | None = None
    ) -> list[FoqsError | None]:
        """Return the outcome of each entry about a leased item."""
        return given.outcomes(self._requests.each(method, policy, given.good, self._by_id, timeout_ms, first))

    @checked()
    def report_hung(self, hung: Mapping[str, int], *, worker: str | None = None, timeout_ms: int | None = None) -> None:
        """Has `topic_stats` name a worker whose handlers hang, for 15 s: `hung` says how many, by the topics of their
        items. A `Worker` with a time limit does that by itself."""
        wants = [idl.TopicCount(topic=topic, count=0, hung=handlers) for topic, handlers in hung.items()]
        request = idl.DequeueRequest(ns=self.namespace, wants=wants, worker=worker or None)
        self._requests.read(methods.DEQUEUE, request, timeout_ms)

    @checked()
    def release_leases(
        self,
        topic: str,
        *,
        worker: str | None = None,
        held_longer_than_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> Released:
        """Ends leases of a topic as if by time: the attempts count, and at-most-once items are removed.

        worker               only leases of the worker with this name (see `Worker`)
        held_longer_than_ms  only leases that were given so long ago

        >>> client.release_leases("mail", worker="host-3:4711")     # doctest: +SKIP
        Released(released=8, missing=())
        """
        request = idl.ReleaseLeasesRequest(self.namespace, topic, worker, held_longer_than_ms)
        response = self._requests.read(methods.RELEASE_LEASES, request, timeout_ms)
        return Released(response.released, tuple(response.missing or ()))
