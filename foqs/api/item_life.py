"""Enqueue, dequeue, and what ends or extends a lease: the requests that change items."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.intake import Intake
from foqs.api.unique import Unique
from foqs.bounds import Bounded, Limits, Quota
from foqs.engine import item_ops
from foqs.engine.calls import PER_WORKER, DequeueCall, EnqueueCall, ItemsCall
from foqs.engine.consumers import holds_all
from foqs.engine.dequeue import ITEM_OVERHEAD_BYTES
from foqs.engine.item_ops import Op
from foqs.engine.listing import ANSWERS_SHARE
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import LaneKey, TopicKey
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, HookCall, Outcome
from foqs.hooks.topic_hooks import TopicHook, TopicHooks, new_item
from foqs.idl import idl, is_forwarded
from foqs.item import Item
from foqs.peers import forwarded_requests
from foqs.peers.forwarded import Incoming
from foqs.peers.quota_client import QuotaClient
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.tenant_shares import Elsewhere
from foqs.rpc.call import Call
from foqs.second_answer import GIVE, of_extensions
from foqs.travel import bare
from foqs.wire.usual_requests import AckColumns, SpecColumns, Wants, ids_and_leases

T = TypeVar("T")
Results = Sequence[bytes | None] | None
"""The results of a request's acks; None if none brings one."""


_FAR_SHARE = 1 / 8
"""Share of the dequeues with `most` that ask other hosts first, for topics that have nothing ready here. Otherwise
topics that have items on other hosts alone would wait until the other topics are empty here. Of dequeues with weights,
these decide."""


_NAMESPACES = 100


class PlainTopics:
    """Topics whose names are good and whose policies do nothing to an enqueue, by namespace: an item of them needs no
    check but its own. They hold for these limits, and until `Policies.changes` changes."""

    __slots__ = ("changes", "limits", "topics")

    def __init__(self, limits: Limits, changes: int) -> None:
        self.limits = limits
        self.changes = changes
        self.topics: dict[str, dict[str, LaneKey]] = {}

    def begin(self, ns: str) -> dict[str, LaneKey]:
        """Return the topics of a namespace that is new here: none. Raises Invalid."""
        validation.name(ns, "ns", self.limits)
        if len(self.topics) >= _NAMESPACES:
            self.topics.clear()
        found = self.topics[ns] = {}
        return found


class ItemLife:
    def __init__(
        self, host: Host, news: ReadyPublisher, quotas: QuotaClient, elsewhere: Elsewhere, hooks: TopicHooks,
        unique: Unique,
    ) -> None:  # fmt: skip
        self._host = host
        self._engine = host.engine
        self._now_ms = host.now_ms
        self._forwarder = host.forwarder
        self._news = news
        self._quotas = quotas
        self._elsewhere = elsewhere
        self._hooks = hooks
        self._unique = unique
        self._known = PlainTopics(host.limits, -1)

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "Enqueue": self.enqueue,
            "Dequeue": self.dequeue,
            "Ack": self.ack,
            "Nack": self.nack,
            "ExtendLease": self.extend,
            "DeleteItems": self.delete,
        }

    def enqueue(self, call: Call, reply: Callable[[list[int | FoqsError]], None] | None = None) -> None:
        """`reply`: gets the outcomes in place of the call."""
        request, limits, state = call.request, self._host.limits, self._engine.state
        if state.draining:
            self._host.refuse_when_draining()
        known = self._known
        if known.limits is not limits or known.changes != state.policies.changes:
            known = self._known = PlainTopics(limits, state.policies.changes)
        ns, specs = request.ns, request.items
        plain_topics = known.topics.get(ns)
        if plain_topics is None:
            plain_topics = known.begin(ns)
        if not specs or len(specs) > limits.request_items:
            validation.counted(specs, "items", limits.request_items)
        timeout_ms = (request.context and request.context.timeout_ms) or limits.timeout_default_ms
        now_ms = self._now_ms()
        waiting = EnqueueCall(len(specs), reply or partial(responses.answer_enqueue, call, state.counters))
        taken = Intake(ns, specs, limits, now_ms, state.policies.namespaces.get(ns), plain_topics)
        if taken.plain and not state.shards_elsewhere and self._quotas.of(ns) is None:
            weights = taken.weights if taken.weighed else None
            self._engine.enqueue(
                waiting, taken.indices, taken.items, taken.keys, taken.sizes, now_ms, timeout_ms, weights,
                ruled=taken.ruled, members=taken.members,
            )  # fmt: skip
        elif taken.hooked and not self._forwarder.was_charged(request):
            self._run_hooks(waiting, taken, request, now_ms, now_ms + timeout_ms)
        else:
            self._admit(waiting, taken, request, now_ms, now_ms + timeout_ms)

    def _run_hooks(self, waiting: EnqueueCall, taken: Intake, request: Any, now_ms: int, deadline_ms: int) -> None:
        """Run the hooks of the items, and store these with the fields that the hooks set."""
        ns, policies = request.ns, self._engine.state.policies

        def done(results: dict[int, EnqueueResult], errors: dict[int, FoqsError]) -> None:
            if policies.versions.get(ns) != version:  # no host acts on a version older than its confirmed one
                at_ms, found = self._now_ms(), policies.namespaces.get(ns)
                again = Intake(ns, request.items, self._host.limits, at_ms, found)
                if again.hooked:
                    self._run_hooks(waiting, again, request, at_ms, deadline_ms)
                else:
                    self._admit(waiting, again, request, at_ms, deadline_ms)
                return
            request.items = specs = with_results(request.items, results, errors)
            taken.errors.update(errors)
            taken.amend(specs, results)
            self._admit(waiting, taken, request, self._now_ms(), deadline_ms)

        version = policies.versions.get(ns)
        run_hooks(self._hooks, ns, taken, request.items, max(1, deadline_ms - now_ms), done)

    def _admit(self, waiting: EnqueueCall, taken: Intake, request: Any, now_ms: int, deadline_ms: int) -> None:
        """Store the valid items of a request that the quotas admit."""
        ns = request.ns
        for index, error in taken.errors.items():
            waiting.refused([index], error)
        if waiting.done:
            return
        quota = self._quotas.of(ns)
        if (quota is None and not taken.bounded) or self._forwarder.was_charged(request):
            self._store(waiting, taken, request, now_ms, deadline_ms)
            return
        charges = [] if quota is None else [((ns, ""), quota)]
        self._charge(waiting, taken, request, deadline_ms, iter([*charges, *taken.bounded.items()]))

    def _charge(
        self, waiting: EnqueueCall, taken: Intake, request: Any, deadline_ms: int,
        charges: Iterator[tuple[Bounded, Quota]],
    ) -> None:  # fmt: skip
        """Store the items that all of `charges` admit."""
        for key, quota in charges:
            topic = key if key[1] else None
            if indices := taken.places(topic):
                keep = partial(taken.keep, key=topic)
                store = partial(self._charge, waiting, taken, request, deadline_ms, charges)
                self._quotas.charge(key, quota, indices, keep, waiting, deadline_ms, store)
                return
        self._store(waiting, taken, request, self._now_ms(), deadline_ms)

    def _store(self, waiting: EnqueueCall, taken: Intake, request: Any, now_ms: int, deadline_ms: int) -> None:
        engine = self._engine
        if taken.keyed:
            if not is_forwarded(request) and any(one.replaces for one in taken.keyed):
                waiting.reply = partial(self._unique.replaced, taken, request, deadline_ms, waiting.reply)
            engine.state.deadlines.push(deadline_ms, waiting)
            engine.state.alarm(deadline_ms)
            self._forwarder.enqueue_keyed(waiting, taken.keyed, request, now_ms, deadline_ms)
        if not taken.items:
            return
        elsewhere = engine.state.shards_elsewhere
        if elsewhere and self._forwarder.enqueue(waiting, taken.indices, request, now_ms, deadline_ms):
            return
        timeout_ms = max(1, deadline_ms - now_ms)
        weights = taken.weights if taken.weighed else None
        engine.enqueue(
            waiting, taken.indices, taken.items, taken.keys, taken.sizes, now_ms, timeout_ms, weights,
            ruled=taken.ruled, members=taken.members,
        )  # fmt: skip

    def dequeue(self, call: Call) -> None:
        state = self._engine.state
        if state.draining or state.budget.used_bytes > state.budget.limit_bytes * ANSWERS_SHARE:
            self._host.refuse_when_draining()
            self._host.refuse_when_full()
        now_ms = self._now_ms()
        wants = call.request.wants
        if wants and not wants[0].count and wants[0].hung is not None:
            self._report_hung(call, now_ms)
            return
        waiting, wait_ms = self.consumer(call, call, now_ms)
        self._engine.dequeue(waiting, now_ms, wait_ms)
        if not waiting.done:
            self.follow(call, waiting)

    def follow(self, call: Call, waiting: DequeueCall) -> None:
        """Let `waiting` end with the connection of `call`, and its wait with a oneway message of the consumer."""
        call.on_lost = partial(self._engine.cancel, waiting)
        if call.request.wait_ms:
            call.on_oneway = partial(self._engine.hurry, waiting)

    def _report_hung(self, call: Call, now_ms: int) -> None:
        """Note how many handlers of a worker hang. The request asks for no items."""
        request, limits = call.request, self._host.limits
        ns = validation.name(request.ns, "ns", limits)
        worker = validation.name(request.worker, "worker", limits, limits.worker_bytes)
        for key, handlers in validation.hung(ns, request.wants, limits):
            self._engine.state.hung.report(key, worker, handlers, now_ms)
        call.reply(idl.DequeueResponse([]))

    def consumer(self, call: Call, answers: Incoming, now_ms: int) -> tuple[DequeueCall, int]:
        """Check the request of `call`. Return the call that waits for its items, and how long it may wait (ms).
        `answers` takes the DequeueResponse. Raises Invalid."""
        request, limits, state = call.request, self._host.limits, self._engine.state
        wants: Any = request.wants
        checked = getattr(wants, "checked", None)
        if checked is None or checked.limits is not limits:
            checked = validation.asked(request, limits)
        _, keys, names_bytes, lease_ms, wait_ms, max_bytes, worker, total, weights = checked
        ns, begins, ledger = request.ns, request.begins, request.ledger
        forwarded = request.context is not None and request.context.hops
        # The answer fits a frame whatever the items are: names and fields count with their largest size.
        holdings, tells = state.holdings, ns in state.policies.per_worker
        most = limits.frame_bytes - responses.REPLY_OVERHEAD_BYTES - (responses.limits_bytes(keys) if tells else 0)
        if ledger:
            state.topics.ledgers.ask([key for key, _ in keys], now_ms)

        asked: DequeueCall | None = None

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            nonlocal asked
            ended, asked = asked, None  # a circle of references: the garbage collector would have to find it
            full = [] if ended is None or items else holdings.limited(ended)
            worker_limits = None if ended is None else ended.limits
            plain = not (doubtful or ledger or worker_limits)
            if items and plain:
                return answers.reply(responses.dequeue_response(items))
            made = [responses.leased(item) for item in items]
            if ledger:
                responses.with_ledgers(items, made, state.topics.ledgers, self._elsewhere, self._now_ms())
            response = idl.DequeueResponse(made, doubtful or None)
            if worker_limits and (tells or not items):
                response.per_worker = {topic: limit.most for (_, topic), limit in worker_limits.items()}
            if doubtful:
                call.doubt(len(doubtful), "at-most-once leases that may have been made")
            elif not items:
                self._explain(response, keys, full, ended, forwarded=forwarded)
            return answers.reply(response)

        elsewhere, until_ms = None, now_ms + wait_ms
        if state.shards_elsewhere and not forwarded:
            deadline_ms = until_ms + validation.timeout_ms(request, limits)
            elsewhere = partial(self._forwarder.dequeue, answers, until_ms, deadline_ms)
        waiting = asked = DequeueCall(
            keys, lease_ms, most, names_bytes + ITEM_OVERHEAD_BYTES, reply, max_bytes or most, elsewhere, worker,
            begins, wants, total, weights,
        )  # fmt: skip
        if not forwarded:
            asker = getattr(wants, "asker", None)
            if asker is None or not asker.known:
                named = None if request.context is None else request.context.client
                asker = state.askers.of(ns, worker, call.peer, keys, named)
                if isinstance(wants, Wants):
                    wants.asker = asker
            asker.asked_ms, asker.until_ms = now_ms, now_ms + wait_ms
        if waiting.most is not None and elsewhere is not None:
            waiting.far = weights is not None or state.rng.random() < _FAR_SHARE
        return waiting, wait_ms

    def _explain(
        self, response: Any, keys: Sequence[tuple[TopicKey, int]], full: Sequence[TopicKey], ended: DequeueCall | None,
        *, forwarded: bool,
    ) -> None:  # fmt: skip
        """Set the reason of a response without items. `full`: topics whose limit the worker has reached."""
        engine = self._engine
        if forwarded:
            response.news_version = self._news.found_nothing(key for key, _ in keys if key not in full)
            if ended is not None:
                for key in full:
                    engine.state.holdings.refused(key, ended)
        if any(engine.state.policies.paused(key) for key, _ in keys):
            response.reason = "paused"
        elif full:
            response.reason = PER_WORKER
        elif ended and (hint := engine.state.throttling.hint(ended, at_ms := self._now_ms())) is not None:
            response.reason = hint.reason
            if hint.retry_at_ms is not None:
                response.retry_after_ms = max(0, hint.retry_at_ms - at_ms)
        elif any(holds_all(engine.state, key) for key, _ in keys):
            response.reason = "paused_tenants"

    def ack(self, call: Call) -> None:
        given, results, sifted = call.request.items, None, None
        if type(given) is AckColumns and len(given.ids) == 1:
            ids, leases = given.ids, given.leases
            op = lambda at: item_ops.ack(leases[at])  # noqa: E731
        else:
            validation.counted(given, "items", self._host.limits.request_items)
            ids, leases, results, sifted = sifted_acks(given, self._host.limits)
            op = ack_op(leases, results)
        if (begun := self._begin(call, idl.AckResponse, forwarded_requests.ACK, ids, op, sifted)) is not None:
            waiting, ns, now_ms, timeout_ms = begun
            self._engine.ack(waiting, ids, leases, ns, now_ms, timeout_ms, results)

    def nack(self, call: Call) -> None:
        self._change(call, idl.NackResponse, forwarded_requests.NACK, self._nack, lambda item: (item.id, item.lease))

    def _nack(self, item: Any) -> Op:
        """Raises Invalid."""
        limits, lease = self._host.limits, item.lease
        delay_ms = validation.within(item.delay_ms, "delay_ms", 0, limits.delay_max_ms, 0)
        metadata = validation.blob(item.metadata, "metadata", limits.metadata_bytes)
        if item.reason is not None and len(validation.text(item.reason, "reason").encode()) > limits.reason_bytes:
            raise Invalid(f"reason has more than {limits.reason_bytes} bytes")
        if sum(map(bool, (item.release, item.failed, item.reject, item.uncounted))) > 1:
            raise Invalid("at most one of release, failed, reject and uncounted")
        if (item.release or item.reject) and (delay_ms or metadata is not None):
            raise Invalid(f"{'release' if item.release else 'reject'} excludes delay_ms and metadata")
        if item.release:
            return item_ops.release(lease)
        if item.reject:
            return item_ops.reject(lease, item.reason or "")
        if item.failed:
            return item_ops.fail(lease, delay_ms, metadata, item.reason or "")
        return item_ops.nack(lease, delay_ms, metadata, counted=not item.uncounted)

    def extend(self, call: Call) -> None:
        gives = of_extensions(call.request.items or ()) is GIVE
        kind = forwarded_requests.GIVE if gives else forwarded_requests.EXTEND
        self._change(call, idl.ExtendLeaseResponse, kind, self._extend, _same_extension)

    def _extend(self, item: Any) -> Op:
        """Raises Invalid."""
        limits = self._host.limits
        lease_ms = validation.within(item.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
        given = validation.progress_of(item, limits)
        return item_ops.extend(item.lease, lease_ms, item.begun, given, durable=bool(item.durable))

    def delete(self, call: Call) -> None:
        ids = validation.counted(call.request.ids, "ids", self._host.limits.request_items)
        sifted = sift(ids, {})
        self.settle(call, idl.DeleteItemsResponse, forwarded_requests.DELETE, ids, [item_ops.delete] * len(ids), sifted)

    def _change(
        self, call: Call, response: Any, kind: forwarded_requests.Kind, op_of: Callable[[Any], Op],
        end_of: Callable[[Any], Hashable],
    ) -> None:  # fmt: skip
        """Carry out what `op_of` makes of each entry, once for entries with one `end_of`."""
        items = validation.counted(call.request.items, "items", self._host.limits.request_items)
        ids, ops, errors = checked(items, op_of)
        self.settle(call, response, kind, ids, ops, sift(ids, errors, lambda at: end_of(items[at])))

    def settle(
        self, call: Call, response: Any, kind: forwarded_requests.Kind, ids: Sequence[int], ops: Sequence[Op],
        sifted: Sifted | None,
    ) -> None:  # fmt: skip
        if sifted is not None:
            ids, ops = sifted.of(ids), sifted.of(ops)
        if (begun := self._begin(call, response, kind, ids, ops.__getitem__, sifted)) is not None:
            waiting, ns, now_ms, timeout_ms = begun
            self._engine.settle(waiting, list(zip(ids, ops, strict=True)), ns, now_ms, timeout_ms)

    def _begin(
        self, call: Call, response: Any, kind: forwarded_requests.Kind, ids: Sequence[int], op: Callable[[int], Op],
        sifted: Sifted | None,
    ) -> tuple[ItemsCall, str | None, int, int] | None:  # fmt: skip
        """Check a request about items by id, of which `ids` are carried out. Return (the call that waits for outcomes,
        namespace, now_ms, timeout_ms), or None if the request is answered: each entry has its error. Raises Invalid."""
        request, state = call.request, self._engine.state
        limits = self._host.limits
        timeout_ms = (request.context and request.context.timeout_ms) or limits.timeout_default_ms
        ns = getattr(request, "ns", None)
        if ns is not None and validation.name_bytes.get(ns, validation.NO_NAME) > limits.name_bytes:
            validation.name(ns, "ns", limits)
        of_entries = None if sifted is None else sifted.outcomes
        reply = partial(responses.answer_items, call, response, state.counters, of_entries)
        if kind is forwarded_requests.NACK:
            reply = partial(responses.answer_nacks, call, state.counters, sifted and sifted.answers, op)
        if not ids:
            reply([])
            return None
        now_ms, elsewhere = self._now_ms(), None
        if state.shards_elsewhere:
            origin = request if sifted is None else kind.sifted(request, sifted.places)
            elsewhere = partial(self._forwarder.items, kind, origin, ids, op, now_ms + timeout_ms)
        return ItemsCall(len(ids), reply, call.within, elsewhere), ns, now_ms, timeout_ms


class Sifted(NamedTuple):
    """The entries of a request about items by id. `places` are the entries that the engine carries out. `answers` has,
    for each entry of the request, its error or the position in `places` whose outcome it shares.

    An entry that is wrong in itself has its error, and nothing else of the request depends on it. Entries that ask for
    the same end share one outcome: the engine carries out the first valid one."""

    places: list[int]
    answers: list[int | FoqsError]

    def of(self, column: Sequence[T]) -> list[T]:
        """Return the values of the entries that are carried out. `column` has one for each entry."""
        return [column[at] for at in self.places]

    def outcomes(self, found: Sequence[FoqsError | None]) -> list[FoqsError | None]:
        """Return the outcome of each entry of the request; `found` has the outcomes of `places`."""
        return [answer if isinstance(answer, FoqsError) else found[answer] for answer in self.answers]


def sift(
    ids: Sequence[int], errors: Mapping[int, FoqsError], end_of: Callable[[int], Hashable] | None = None
) -> Sifted | None:
    """Separate the entries that the engine carries out from the rest. None: it carries out each entry by itself.

    `errors` has the wrong entries. Entries with equal `end_of` ask for the same end; by default, entries with equal
    ids."""
    if not errors and len(set(ids)) == len(ids):
        return None
    first: dict[Hashable, int] = {}
    places: list[int] = []
    answers: list[int | FoqsError] = []
    for at, item_id in enumerate(ids):
        error = errors.get(at)
        if error is not None:
            answers.append(error)
            continue
        place = first.setdefault(item_id if end_of is None else end_of(at), len(places))
        if place == len(places):
            places.append(at)
        answers.append(place)
    return Sifted(places, answers) if len(places) < len(ids) else None


def checked(entries: Sequence[Any], op_of: Callable[[Any], Op]) -> tuple[list[int], list[Op], dict[int, FoqsError]]:
    """Return the ids of the entries, what `op_of` makes of each, and by entry the error that it raised."""
    ids: list[int] = []
    ops: list[Op] = []
    errors: dict[int, FoqsError] = {}
    for at, entry in enumerate(entries):
        try:
            if entry.id is None or entry.lease is None:
                raise _missing(entry)
            op = op_of(entry)
        except Invalid as error:
            errors[at] = bare(error)
            op = _never
        ids.append(entry.id or 0)
        ops.append(op)
    return ids, ops, errors


def sifted_acks(acks: Sequence[Any], limits: Limits) -> tuple[list[int], list[int], Results, Sifted | None]:
    """Return the ids, the leases and the results of the acks to carry out, and the result of `sift`."""
    ids, leases = ids_and_leases(acks)
    errors: dict[int, FoqsError] = {}
    results: Results = None
    if not isinstance(acks, AckColumns):  # which have an id and a lease alone
        for at, ack in enumerate(acks):
            if ack.id is None or ack.lease is None:
                errors[at] = _missing(ack)
            elif ack.result is not None:
                try:
                    validation.blob(ack.result, "result", limits.result_bytes)
                except Invalid as error:
                    errors[at] = bare(error)
                results = results or [ack.result for ack in acks]
    sifted = sift(ids, errors, lambda at: (ids[at], leases[at]))
    if sifted is None:
        return ids, leases, results, None
    return sifted.of(ids), sifted.of(leases), None if results is None else sifted.of(results), sifted


def ack_op(leases: Sequence[int], results: Results) -> Callable[[int], Op]:
    """Return how each ack of a request is carried out."""
    return lambda at: item_ops.ack(leases[at], None if results is None else results[at])


def _same_extension(item: Any) -> Hashable:
    """Several extensions of one lease may all hold, unlike two ends of it: only equal ones are one."""
    said = item.progress and (item.progress.done, item.progress.total, item.progress.text)
    log = item.log and tuple(item.log)
    return (item.id, item.lease, item.lease_ms, item.begun, item.checkpoint, said, log, item.durable)


def _never(*_: object) -> FoqsError | bool:
    """The op of an entry that is wrong, which is sifted out."""
    raise AssertionError("an entry that is wrong is not carried out")


def _missing(entry: Any) -> Invalid:
    what = "id" if entry.id is None else "lease"
    return Invalid(f"{what} is missing: give the id and the lease of the delivered item")


def run_hooks(
    hooks: TopicHooks, ns: str, taken: Intake, specs: Sequence[Any], timeout_ms: int,
    done: Callable[[dict[int, EnqueueResult], dict[int, FoqsError]], None],
) -> None:  # fmt: skip
    """Run the `on_enqueue` hooks of the items in `taken`, which are the valid ones of `specs`. A hook sets fields of an
    item, or refuses it. `timeout_ms` is the request's. Call `done` once with the results of scripts and with the errors
    of items that are not stored, by index."""
    found: dict[str, TopicHook] = {}
    for topic in taken.hooked:
        hook = hooks.of((ns, topic), Hook.ON_ENQUEUE)
        if hook is not None:
            found[topic] = hook
    places, calls = _calls(found, specs, taken.places())
    if not places:
        done({}, {})
        return

    def ended(outcomes: list[Outcome]) -> None:
        results: dict[int, EnqueueResult] = {}
        errors: dict[int, FoqsError] = {}
        for at, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, Failed):
                hook = found[specs[at].topic]
                hooks.report(hook, outcome)
                if hook.refuses:
                    errors[at] = hook.refusal(outcome)
                continue
            result = outcome.result
            assert isinstance(result, EnqueueResult), "the pool checks results"
            if result.refuse is not None:
                errors[at] = Invalid(result.refuse)
            else:
                results[at] = result
        done(results, errors)

    hooks.pool.run(calls, min(timeout_ms, hooks.request_ms()), ended)


def _calls(
    found: Mapping[str, TopicHook], specs: Sequence[Any], places: Sequence[int]
) -> tuple[Sequence[int], list[HookCall]]:
    """Return which items have a hook, of those at `places`, and a call for each of them."""
    if isinstance(specs, SpecColumns):
        topic = specs.first.topic
        if topic not in found:
            return (), []
        hook, payloads, headers, priorities = found[topic], specs.payloads, specs.headers, specs.priorities
        items = [
            new_item(topic, None if headers is None else headers[at], len(payloads[at]), priorities[at])
            for at in places
        ]
        return places, list(map(hook.call, items))
    hooked = [(at, specs[at]) for at in places if specs[at].topic in found]
    return [at for at, _ in hooked], [found[spec.topic].call(read_by_script(spec)) for _, spec in hooked]


def with_results(specs: Sequence[Any], results: Mapping[int, EnqueueResult], errors: Mapping[int, FoqsError]) -> Any:
    """Return the items of a request with the fields that hooks set. They stay columns if each item has a result, and
    the results set tenants and priorities alone."""
    if isinstance(specs, SpecColumns) and len(results) == len(specs) and not errors:
        _, tenants, weights, throttles, priorities, delays_ms, ttls_ms = map(list, zip(*results.values(), strict=True))
        none = [None] * len(specs)
        if weights == throttles == delays_ms == ttls_ms == none and all(
            column == none or None not in column for column in (tenants, priorities)
        ):
            return specs.changed(*(None if column == none else column for column in (tenants, priorities)))
    specs = list(specs)
    for index, result in results.items():
        set_fields(specs[index], result)
    return specs


def read_by_script(spec: Any) -> dict[str, Any]:
    """Return the fields of an ItemSpec that `on_enqueue` reads."""
    return new_item(spec.topic, spec.headers, len(spec.payload), spec.priority)


def set_fields(spec: Any, result: EnqueueResult) -> None:
    """Set the fields of a hook's result in an ItemSpec, in place of the producer's."""
    if result.fairness_key is not None:
        spec.fairness_key = result.fairness_key
    if result.weight is not None:
        spec.weight = result.weight
    if result.throttle_keys is not None:
        spec.throttle_keys = list(result.throttle_keys)
    if result.priority is not None:
        spec.priority = result.priority
    if result.delay_ms is not None:
        spec.delay_ms, spec.deliver_after_ms = result.delay_ms, None
    if result.ttl_ms is not None:
        spec.ttl_ms, spec.expires_at_ms = result.ttl_ms, None
