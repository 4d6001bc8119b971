# Written by script/twin.py from foqs/client/_async/consumer_calls.py: change that file.
"""Methods of `Client` for consumers: dequeue, ack, nack and extend; also acks and a dequeue in one request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from foqs import second_answer
from foqs.bounds import LIMITS
from foqs.client import arguments, methods
from foqs.client._sync.requests import Requests, with_places
from foqs.client._sync.router import Topics
from foqs.client.arguments import Entries, check_dequeue, check_leased, check_many, checked
from foqs.client.call import AGAIN, First, Taken, after_doubt, single
from foqs.client.guard import SafeLog
from foqs.client.items import Ack, Extension, Items, Leased, Nack, Progress, counts_of
from foqs.client.methods import current
from foqs.client.per_worker import Ask, Share
from foqs.client.routes import Address, Part
from foqs.errors import FoqsError, OutcomeUnknown, item_error, named
from foqs.idl import idl
from foqs.second_answer import END_ITEM, LOOK, Policy, Verdict, judge
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod

if TYPE_CHECKING:
    from foqs.client.tracing import Tracing

log = SafeLog()

STAY_S = 0.1
"""Time for which one host of several is asked: its items are acked at the same host. Then the next host is asked."""


class AckDequeue:
    """Requests with acks and a dequeue. Each call is one request, and is not repeated.

    The acks of one request belong to the host that is asked for items, as far as the client knows the owners."""

    def __init__(self, requests: Requests, topics: Topics, tracing: Tracing | None) -> None:
        self._requests = requests
        self._topics = topics
        self._tracing = tracing
        self._clock = monotonic
        self._stay: Address | None = None
        self._stay_until = 0.0

    def part(self, acks: Sequence[Leased], topics: Collection[str], *, first: bool = True) -> Part:
        """Return the hosts to ask for items of `topics`, and the indices of the acks to send with that request: none of
        more than a request holds, because two parts would answer one lease differently, and none with results, which
        may need several requests. `first`: see `Topics.having`.
        """
        if not acks or len(acks) > LIMITS.request_items or Ack in set(map(type, acks)):
            return Part((), ())
        router = self._requests.router
        routes = router.routes
        if routes.alone:
            return Part(router.only or (), range(len(acks)))
        having = self._topics.having(topics, first=first)
        now = self._clock()
        stay = self._stay
        if stay is None or now >= self._stay_until or (having and stay not in having):
            to = router.order_for_items(having)
            self._stay, self._stay_until = to[0], now + STAY_S
        else:
            to = router.order_at(stay)
        owners = [routes.owner(item.id) for item in acks]
        return Part(to, [at for at, owner in enumerate(owners) if owner is None or owner == to[0]])

    def ask(
        self, part: Part, acks: Sequence[Leased], wants: Mapping[str, int], deadline: float, *,
        lease_ms: int | None, max_bytes: int | None = None, worker: str | None = None, begins: int | None = None,
        holding: Share | None = None, most: int | None = None, weights: Mapping[str, int] | None = None,
    ) -> Taken:  # fmt: skip
        """Send one request with the acks of `part`, which `outcomes` are about. Raises the error of the whole request,
        such as LostReply: each ack may have been carried out."""
        acked = acks if len(part.asked) == len(acks) else [acks[at] for at in part.asked]
        places = None if holding is None else self._requests.places.ask(wants, holding, wait=False, acked=acked)
        most = most if most and len(wants) > 1 else None
        request = methods.dequeue_request(
            self._requests.namespace, wants if places is None else places.counts, None, lease_ms, max_bytes,
            worker=worker, begins=begins, most=most, weights=weights if most else None,
            holding=None if places is None else places.holding, acks=acked,
        )  # fmt: skip
        if self._tracing is None:
            return self._ask(part, request, places, deadline)
        with self._tracing.dequeue(wants) as noted:
            return noted(self._ask(part, request, places, deadline))

    def _ask(self, part: Part, request: Any, places: Ask | None, deadline: float) -> Taken:
        caller, request_id, response = self._requests.caller, current(), None
        if not self._requests.router.begun:
            self._requests.router.begin()
        try:
            asked = caller.send(
                methods.ACK_AND_DEQUEUE, request, deadline, repeatable=True, to=part.to, request_id=request_id
            )
            response = caller.receive(asked)
        finally:
            if places is not None:
                places.end(response)
        outcomes = response.outcomes or ()
        if len(outcomes) != len(part.asked):
            raise OutcomeUnknown(f"the server gave {len(outcomes)} outcomes for {len(part.asked)} acks")
        errors: list[FoqsError | None] = [
            None if one.error is None else named(item_error(one.error), request_id) for one in outcomes
        ]
        refused = None if response.error is None else named(item_error(response.error), request_id)
        return Taken(errors, _items(response), refused)


class ConsumerCalls:
    """A part of `Client`."""

    namespace: str
    tracing: Tracing | None
    combined: AckDequeue
    _requests: Requests
    _topics: Topics

    # ------------------------------------------------------------------------------------- dequeue

    def dequeue(
        self,
        topics: str | Sequence[str] | Mapping[str, int],
        count: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        max_bytes: int | None = None,
        most: int | None = None,
        weights: Mapping[str, int] | None = None,
        worker: str | None = None,
        begins: int | None = None,
        holding: Mapping[str, int] | Share | None = None,
        ledger: bool = False,
        timeout_ms: int | None = None,
    ) -> Items:
        """Lease up to `count` items per topic, in the given order of topics. A mapping sets the count per topic.
        `most` bounds the items of all topics together. The topics that have items share it evenly, or by `weights`, 1
        to 1,000 each; a topic without one has 1.

        Returns as soon as anything is ready, or after `wait_ms` with nothing: the list's `reason` may then say why,
        for example "paused". `wait_ms` 0: at once. `lease_ms`: how long the leases last; default each item's own, else
        the server's. `max_bytes` bounds payloads, metadata and headers together; 0: no limit. `worker` names the
        caller to operators. `begins`: how many of the items, the first ones, are begun at once; the rest counts as not
        begun (see `begun_many`). Default: all. `holding`: how many items of each topic the process holds, for topics
        with the policy `per_worker`; acks, nacks, releases and deletes by this client count while the call waits.
        Default: each host counts the leases of `worker`. `ledger`: the items come with their `Ledger`.
        """
        check_dequeue(topics, count, wait_ms, lease_ms, max_bytes, worker, begins, holding, ledger, most, weights)
        requests = self._requests
        max_bytes = max_bytes or None
        counts = {topics: count} if not most and isinstance(topics, str) else counts_of(topics, count, most)
        total = most if most and len(counts) > 1 else None
        wait_until = monotonic() + wait_ms / 1000
        deadline = requests.deadline(timeout_ms) + wait_ms / 1000

        def ask(request_id: str, places: Ask | None = None) -> Any:
            left_ms = max(0.0, (wait_until - monotonic()) * 1000)
            request = methods.dequeue_request(
                self.namespace, counts if places is None else places.counts, int(left_ms), lease_ms, max_bytes,
                worker=worker, ledger=ledger or None, begins=begins, most=total,
                holding=None if places is None else places.holding, weights=None if total is None else weights,
            )  # fmt: skip
            to, caller = requests.router.only, requests.caller
            if to is None:
                to = requests.router.order_for_items(self._topics.having(counts, first=total is None))
            asked = caller.send(
                methods.DEQUEUE, request, deadline, repeatable=True, wait_ms=left_ms, to=to, request_id=request_id
            )
            return caller.receive(asked, places)

        def ask_with_places(request_id: str) -> Any:
            return with_places(requests.places, counts, holding or {}, wait_until, partial(ask, request_id))

        attempt = ask if holding is None else ask_with_places
        if self.tracing is None:
            return _items(requests.look(attempt, deadline))
        with self.tracing.dequeue(counts) as noted:
            return _items(noted(requests.look(attempt, deadline)))

    def ack_and_dequeue(
        self,
        done: Iterable[Leased],
        topics: str | Sequence[str] | Mapping[str, int],
        count: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        max_bytes: int | None = None,
        most: int | None = None,
        weights: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
    ) -> Taken:
        """Call `ack_many` and then `dequeue`, in one request where the host takes both.

        >>> items = []
        >>> while True:                                             # doctest: +SKIP
        ...     outcomes, items, error = client.ack_and_dequeue(items, "mail", count=10, wait_ms=5_000)
        ...     ...                                                 # work on the items

        `outcomes` has the outcome of each ack, `items` the leased ones, and `error` is why there are none: the outcomes
        hold all the same. Raises no FoqsError but Invalid, for a wrong argument. An ack that failed where items came is
        not repeated, because the leases of these run: give it to `ack_many`. If an `Ack` brings a result, the acks go
        before the dequeue.
        """
        check_many("done", done)
        check_dequeue(topics, count, wait_ms, lease_ms, max_bytes, most=most, weights=weights)
        max_bytes = max_bytes or None
        given, counts = Entries(done, arguments.ack_entry), counts_of(topics, count, most)
        acks = given.good
        wait_until = monotonic() + wait_ms / 1000
        deadline = self._requests.deadline(timeout_ms)
        outcomes: list[FoqsError | None] = [None] * len(acks)
        doubtful: set[int] = set()

        def ack(places: Sequence[int]) -> None:
            """Send the acks of these `places` by themselves."""
            entries = [acks[at] for at in places]
            for at, error in zip(places, self.ack_many(entries, timeout_ms=timeout_ms), strict=True):
                outcomes[at] = after_doubt(error) if at in doubtful else error

        part = self.combined.part(acks, counts, first=not most or len(counts) < 2)
        if len(part.asked) < len(acks):
            along = set(part.asked)
            ack([at for at in range(len(acks)) if at not in along])
        if part.asked:
            try:
                taken = self.combined.ask(
                    part, acks, counts, deadline, lease_ms=lease_ms, max_bytes=max_bytes, most=most, weights=weights
                )
            except FoqsError as error:  # it may be about the items that are asked for
                if judge(END_ITEM, error, doubtful=False) is Verdict.AGAIN_DOUBTFUL:
                    doubtful.update(part.asked)
                ack(part.asked)
            else:
                again = []
                for at, one in zip(part.asked, taken.outcomes, strict=True):
                    outcomes[at] = one
                    if one is None:
                        continue
                    verdict = judge(END_ITEM, one, doubtful=False)
                    if verdict in AGAIN and not taken.items:
                        again.append(at)
                    if verdict is Verdict.AGAIN_DOUBTFUL:
                        doubtful.add(at)
                if again:
                    ack(again)
                if taken.items or (taken.error and judge(LOOK, taken.error, doubtful=False) not in AGAIN):
                    return Taken(given.outcomes(outcomes), taken.items, taken.error)
        items, failed = Items(), None
        try:
            left_ms = max(0, int((wait_until - monotonic()) * 1000))
            items = self.dequeue(
                counts, wait_ms=left_ms, lease_ms=lease_ms, max_bytes=max_bytes, most=most, weights=weights,
                timeout_ms=timeout_ms,
            )  # fmt: skip
        except FoqsError as error:
            failed = bare(error)
        return Taken(given.outcomes(outcomes), items, failed)

    # ------------------------------------------------------------------------------------- ack, nack, extend

    def ack(self, item: Leased, *, result: bytes | None = None, timeout_ms: int | None = None) -> None:
        """End the item: it is never delivered again. Raises StaleLease when another consumer has it by now,
        NotFound when it is gone. `result`: what the work brought, at most 64 KiB, for callers of `get_result`.
        """
        if result is not None:
            single(self.ack_many((Ack.of(item, result),), timeout_ms=timeout_ms))
            return
        try:
            usual = methods.ack_request(self.namespace, item.id, item.lease)
        except AttributeError:
            check_leased("item", item)
            raise
        if usual is None:
            single(self.ack_many((item,), timeout_ms=timeout_ms))
            return
        router = self._requests.router
        to = router.order_for(item.id) if router.only is None else router.only
        found = self._requests.first(methods.ACK, END_ITEM, usual, to, timeout_ms)
        if isinstance(found, First):
            given = Entries((item,), arguments.ack_entry)
            outcomes = self._each(methods.ACK, END_ITEM, given, timeout_ms, found)
            del found  # it may hold the error, whose traceback holds this frame
            single(outcomes)
        elif self._requests.places.remembered:
            self._requests.places.left((item.id,))

    @checked()
    def ack_many(self, items: Iterable[Leased], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`ack` for many: None for each that was done, else its error. An `Ack` brings a result."""
        return self._each(methods.ACK, END_ITEM, Entries(items, arguments.ack_entry), timeout_ms)

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
        uncounted: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Give the item back, to be delivered again after `delay_ms` (an at-most-once item is dropped).
        `metadata` replaces the item's: partial progress for the next attempt. `failed`, `reject`, `uncounted`: see
        `Nack`. Raises StaleLease or NotFound like `ack`, and OutcomeUnknown when a reply was lost and the lease has
        ended by now.
        """
        nack = Nack.of(
            item, delay_ms=delay_ms, metadata=metadata, reason=reason, failed=failed, reject=reject, uncounted=uncounted
        )
        single(self.nack_many((nack,), timeout_ms=timeout_ms))

    @checked()
    def nack_many(self, nacks: Iterable[Nack], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`nack` for many, each with its own delay and metadata.

        >>> client.nack_many(Nack.of(item, delay_ms=1_000) for item in items)   # doctest: +SKIP
        [None, None]
        """
        return self._each(methods.NACK, second_answer.NACK, Entries(nacks, arguments.nack_entry), timeout_ms)

    @checked()
    def release(self, item: Leased, *, timeout_ms: int | None = None) -> None:
        """Give back an item that was not begun: no delay, the attempt is not counted, at-most-once items as
        well.
        """
        single(self.release_many((item,), timeout_ms=timeout_ms))

    @checked()
    def release_many(self, items: Iterable[Leased], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`release` for many."""
        return self._each(methods.NACK, second_answer.RELEASE, Entries(items, arguments.release_entry), timeout_ms)

    @checked()
    def extend(
        self,
        item: Leased,
        lease_ms: int | None = None,
        *,
        checkpoint: bytes | None = None,
        progress: Progress | None = None,
        log: Sequence[str] | None = None,
        durable: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Make the lease end `lease_ms` from now (default: the duration it was given at first), or keep a checkpoint,
        progress or lines of a log with the item, as `Extension` describes them. Raises StaleLease or NotFound when the
        lease is lost, and OutcomeUnknown when a checkpoint, progress or a log may be written without an answer.

        After a lost reply the request is repeated: its lines may then be in the log twice.
        """
        given = Extension.of(item, lease_ms, checkpoint=checkpoint, progress=progress, log=log, durable=durable)
        single(self.extend_many((given,), timeout_ms=timeout_ms))

    @checked()
    def extend_many(
        self, items: Iterable[Leased], lease_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """`extend` for many. An `Extension` says more than a leased item."""
        extensions = Entries(items, partial(arguments.extend_entry, lease_ms=lease_ms))
        return self._each(methods.EXTEND, second_answer.of_extensions(extensions.good), extensions, timeout_ms)

    @checked()
    def begun_many(
        self, items: Iterable[Leased], *, begun: bool = True, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """Mark leased items as begun, or not begun: the attempt of an item that was not begun is not counted if its
        lease ends by time. The leases end when they would have. An item without this mark counts as begun.
        """
        marks = Entries(items, partial(arguments.extend_entry, begun=begun))
        return self._each(methods.EXTEND, second_answer.EXTEND, marks, timeout_ms)

    @checked()
    def report_hung(self, hung: Mapping[str, int], *, worker: str | None = None, timeout_ms: int | None = None) -> None:
        """Have `topic_stats` name a worker whose handlers hang, for 15 s: `hung` says how many, by the topics of their
        items. A `Worker` with a time limit does that by itself."""
        wants = [idl.TopicCount(topic=topic, count=0, hung=handlers) for topic, handlers in hung.items()]
        request = idl.DequeueRequest(ns=self.namespace, wants=wants, worker=worker or None)
        self._requests.call(methods.DEQUEUE, request, timeout_ms)

    def _nack_after(
        self, nacks: Iterable[Nack], after: dict[int, Any], *, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """`nack_many`, for workers. `after` gets what happens to failed items, by their ids, where hosts say it."""
        given = Entries(nacks, arguments.nack_entry)
        done = self._requests.each(methods.NACK, second_answer.NACK, given.good, timeout_ms, None, after)
        return given.outcomes(done)

    def _each(
        self, method: RemoteMethod, policy: Policy, given: Entries, timeout_ms: int | None, first: First | None = None
    ) -> list[FoqsError | None]:
        """Return the outcome of each entry about a leased item."""
        return given.outcomes(self._requests.each(method, policy, given.good, timeout_ms, first))


def _items(response: Any) -> Items:
    """Return the items of a dequeue, and log the ids of doubtful ones."""
    if response.doubtful:
        log.warning("at-most-once items that come later or never: %s", response.doubtful)
    items = Items(response.items or ())
    if not items:
        items.reason, items.retry_after_ms = response.reason, response.retry_after_ms
    return items
