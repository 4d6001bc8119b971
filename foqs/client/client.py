"""The blocking client: one method for each call of the service, retries where they are safe.

The credential of a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack
from weakref import finalize

from foqs import second_answer
from foqs.bounds import Limits
from foqs.client import arguments, methods
from foqs.client.arguments import (
    Entries,
    check_dequeue,
    check_leased,
    check_many,
    checked,
    duration,
    faults_of,
    instance_of,
    unlimited,
)
from foqs.client.caller import Caller, OnRetry, Pool
from foqs.client.connection import Securing, Tls, parse_addresses
from foqs.client.items import (
    ActiveTopic,
    Item,
    ItemOptions,
    Items,
    ItemSpec,
    ItemState,
    Leased,
    counts_of,
)
from foqs.client.lease_calls import (
    AckDequeue,
    LeaseMethods,
    Taken,
    ack_then_dequeue,
    leased_items,
    most_of,
    topic_counts,
)
from foqs.client.methods import ack_request, dequeue_request, enqueue_request
from foqs.client.operator_calls import DeadLetterCalls, HookMethods, SettingsMethods
from foqs.client.operator_types import Explaining, Looks
from foqs.client.places import Ask, Places, Share
from foqs.client.requests import First, Requests, Split, id_of, one_of
from foqs.client.router import Router, Topics, active_topics
from foqs.client.routes import Part, slot
from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.ids import parse_id
from foqs.travel import Local

if TYPE_CHECKING:
    from foqs.client.tracing import Tracing


def read_token(given: str | None) -> str | None:
    """`given`, or what the file holds where it is `@path`. Raises Invalid, which does not name the token."""
    if given is None or not given.startswith("@"):
        return given
    try:
        token = Path(given[1:]).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"token: cannot read {given[1:]}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not token:
        raise Invalid(f"token: {given[1:]} is empty")
    return token


_LIMITS = Limits()
_ONLY_SPECS = frozenset((ItemSpec,))

DEFAULT_ADDRESS = "127.0.0.1:7707"


class Client(DeadLetterCalls, Explaining, HookMethods, LeaseMethods, Looks, SettingsMethods, Local):
    """Calls one namespace of a foqs service. Thread-safe. A forked child may use it: with connections of its own.

    >>> with Client("127.0.0.1:7707", "shop") as client:            # doctest: +SKIP
    ...     client.enqueue("mail", b"to: someone", priority=-1)
    ...     for item in client.dequeue("mail", count=10, wait_ms=5_000):
    ...         print(item.payload)
    ...         client.ack(item)

    address             `host:port`, or several with commas: each is tried, and connections spread over them
    token               credential, where the server asks for one, or `@path` of a file that holds it
    tls                 talk TLS, as it says (a `Tls`, or the text of one: "on"); default: in the clear
    timeout_ms          how long a call may take, 1 or more, with all its retries (each request of a batch that needs
                        several; for a dequeue beyond its wait). Every method takes another one for that call
    attempt_timeout_ms  a request without a reply for this time is retried, if that is safe
    connect_timeout_ms  for one connection to one address
    pool_size           connections at most; 0: no limit. A long poll needs one for itself. Of a cluster, more than it
                        has hosts: else the client closes some to open new ones. The routing takes one more
    max_idle_ms         a connection that was idle for longer is not used again; 0: each is used once
    max_frame_bytes     the largest request, 4,096 to 67,108,864; the server's `frame_bytes`
    routing             learn the hosts of all shards, keep that fresh in a thread, and send requests straight there;
                        then hosts beyond `address` are called as well. False for one address in front of all
    wait_server         retry also while a server refuses connections, or TLS. False: if no server has answered a call
                        yet, such a call ends at once
    tracing             make OpenTelemetry's spans, also in producers and workers on it, and have items carry the trace
                        context in their headers (docs/tracing.md). ImportError without the extra `foqs[otel]`
    on_retry            called as `on_retry(error, left_s)` before the first retry, and again after a minute without
                        any; `left_s`: how long the call goes on. An exception of it is logged, and the call continues.
                        Default: a warning in the log `foqs.client`

    What fails in a way that changed nothing is asked of another host, where there is one.

    Safe to retry: a request that was not sent whole; one that got OVERLOADED or UNAVAILABLE (only the
    items concerned, after the server's `retry_after_ms`); and after a lost reply everything but an enqueue.
    An ack or delete that finds its item gone after the client's own retry is a success. An enqueue whose
    reply is lost is `OutcomeUnknown`: the item may have been stored, and the client does not store it twice. With a
    `dedup_key` it is asked again, and stored once.

    Methods for one item raise its error; `*_many` return one outcome per item, in order, and raise nothing:
    a request that fails as a whole is the outcome of each of its items. An entry that cannot be sent is `Invalid`, and
    the other ones are sent. A lease that comes twice has one outcome, twice.

    An argument of the wrong type or out of range is Invalid, before anything is sent; the error names it and its range.
    Durations are whole milliseconds.
    """

    instead = "make a Client with the same arguments there"

    @checked(timeout_ms=duration(1))
    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        namespace: str = "default",
        *,
        token: str | None = None,
        tls: Tls | str | None = None,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 10_000,
        connect_timeout_ms: int = 3_000,
        pool_size: int = 16,
        max_idle_ms: int = 300_000,
        max_frame_bytes: int = _LIMITS.frame_bytes,
        routing: bool = True,
        wait_server: bool = True,
        tracing: bool = False,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.namespace = namespace
        self.address = address
        self.tracing = _tracing(namespace) if tracing else None
        given = parse_addresses(address)
        securing = None if tls is None else Securing(Tls.parse(tls) if isinstance(tls, str) else tls)
        token = read_token(token)
        pool = Pool(given, pool_size, connect_timeout_ms / 1000, max_idle_ms / 1000, securing)
        traceparent = None if self.tracing is None else self.tracing.traceparent
        self._caller = Caller(pool, token, attempt_timeout_ms, max_frame_bytes, traceparent, on_retry, wait_server)
        self._router = Router(
            given, token, connect_timeout_ms / 1000, pool.living, securing=securing, enabled=routing,
            connections=unlimited(pool_size),
        )  # fmt: skip
        self._requests = Requests(self._caller, self._router, namespace, timeout_ms)
        self._topics = Topics(partial(active_topics, self._caller, self._router, namespace))
        self._places = self._requests.places = Places(namespace, self._router.known)
        self.combined = AckDequeue(self._caller, self._router, self._topics, self._places, namespace)
        finalize(self, self._router.close)  # a client that is just forgotten leaves no thread

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(
        self, topic: str, payload: bytes, *, timeout_ms: int | None = None, **options: Unpack[ItemOptions]
    ) -> int:
        """Stores one item and returns its id: it is committed then. `options`: see `ItemOptions`.

        With a `dedup_key` that was used before it is a `Duplicate`, the id of the item that was stored then. Raises
        OutcomeUnknown when it may or may not have been stored, else the reason why it was not.
        """
        usual = None if self.tracing is not None else enqueue_request(self.namespace, topic, payload, **options)
        if usual is None:
            return one_of(self.enqueue_many((ItemSpec(topic, payload, **options),), timeout_ms=timeout_ms))
        to = self._router.order_for_new()
        found = self._requests.first(methods.ENQUEUE, second_answer.ONCE, usual, to, timeout_ms)
        if not isinstance(found, First):
            return id_of(found)
        outcomes = self._enqueue_many((ItemSpec(topic, payload, **options),), timeout_ms, found)
        del found  # it may hold the error, whose traceback holds this frame
        return one_of(outcomes)

    @checked()
    def enqueue_many(self, items: Iterable[ItemSpec], *, timeout_ms: int | None = None) -> list[int | FoqsError]:
        """Stores items; the outcome of each, in order: its id, or the error that kept it from being stored.

        >>> client.enqueue_many([ItemSpec("mail", b"a"), ItemSpec("", b"b")])   # doctest: +SKIP
        [1407374883553281, Invalid('topic is empty')]
        """
        specs = items if isinstance(items, list | tuple) else list(items)
        if not _ONLY_SPECS.issuperset(map(type, specs)):
            given = Entries(specs, arguments.spec_entry)
            if given.errors:
                return given.outcomes(self.enqueue_many(given.good, timeout_ms=timeout_ms))
        store = partial(self._enqueue_many, timeout_ms=timeout_ms)
        if self.tracing is None:
            return store(specs)
        return self.tracing.enqueue(specs, store, lambda: self.server_info().limits)

    def _enqueue_many(
        self, specs: Sequence[ItemSpec], timeout_ms: int | None, first: First | None = None
    ) -> list[int | FoqsError]:
        if first is None and (faults := faults_of(specs)):
            sound = [spec for at, spec in enumerate(specs) if at not in faults]
            stored = iter(self._enqueue_many(sound, timeout_ms) if sound else ())
            return [faults[at] if at in faults else next(stored) for at in range(len(specs))]
        if all(spec.dedup_key is None for spec in specs):
            return self._requests.each(methods.ENQUEUE, second_answer.ONCE, specs, self._anywhere, timeout_ms, first)
        keyed = [spec for spec in specs if spec.dedup_key is not None]
        plain = [spec for spec in specs if spec.dedup_key is None]
        keyed_outcomes = iter(
            self._requests.each(methods.ENQUEUE, second_answer.KEYED, keyed, self._by_slot, timeout_ms)
        )
        outcomes = iter(self._requests.each(methods.ENQUEUE, second_answer.ONCE, plain, self._anywhere, timeout_ms))
        return [next(outcomes if spec.dedup_key is None else keyed_outcomes) for spec in specs]

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
        worker: str | None = None,
        begins: int | None = None,
        holding: Mapping[str, int] | Share | None = None,
        ledger: bool = False,
        timeout_ms: int | None = None,
    ) -> Items:
        """Leases up to `count` items of each topic (a mapping says how many of which), the first topics
        first. `most` bounds the items of all topics together. The topics that have items share it evenly.

        Returns as soon as anything is ready, or after `wait_ms` with nothing: the list's `reason` may then say why,
        for example "paused". `wait_ms` 0: at once. `lease_ms`: how long the leases last; default each item's own, else
        the server's. `max_bytes` bounds payloads, metadata and headers together; 0: no limit. `worker` names the
        caller to operators. `begins`: how many of the items, the first ones, are begun at once; the rest counts as not
        begun (see `begun_many`). Default: all. `holding`: how many items of each topic the process holds, for topics
        with the policy `per_worker`; acks, nacks, releases and deletes by this client count while the call waits.
        Default: each host counts the leases of `worker`. `ledger`: the items come with their `Ledger`.
        """
        check_dequeue(topics, count, wait_ms, lease_ms, max_bytes, worker, begins, holding, ledger, most)
        max_bytes = max_bytes or None
        counts = counts_of(topics, count, most)
        total = most_of(counts, most)
        wait_until = monotonic() + wait_ms / 1000
        deadline = wait_until + self._requests.timeout_s(timeout_ms)

        def attempt(request_id: str) -> Any:
            if holding is None:
                return ask(request_id, None)
            return self._places.wait(counts, holding, wait_until, partial(ask, request_id))

        def ask(request_id: str, asked: Ask | None) -> Any:
            left_ms = max(0.0, (wait_until - monotonic()) * 1000)
            request: Any = None
            if worker is None and begins is None and asked is None and not (ledger or total):
                request = dequeue_request(self.namespace, counts, int(left_ms), lease_ms, max_bytes)
            if request is None:
                wants = topic_counts(counts, asked)
                request = idl.DequeueRequest(
                    self.namespace, wants, lease_ms, int(left_ms), max_bytes, worker, ledger or None, begins, total
                )
            among = () if self._router.routes.alone else self._topics.having(counts, first=total is None)
            to = self._router.order(among)
            return self._caller.ask(
                methods.DEQUEUE, request, deadline, repeatable=True, wait_ms=left_ms, to=to, request_id=request_id,
                asked=asked,
            )  # fmt: skip

        look = partial(self._requests.look, attempt, deadline)
        return leased_items(look() if self.tracing is None else self.tracing.dequeue(counts, look))

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
        timeout_ms: int | None = None,
    ) -> Taken:
        """`ack_many` and then `dequeue`, in one request where the host takes both.

        >>> items = []
        >>> while True:                                             # doctest: +SKIP
        ...     outcomes, items, error = client.ack_and_dequeue(items, "mail", count=10, wait_ms=5_000)
        ...     ...                                                 # work on the items

        `outcomes` are those of the acks, `items` the leased ones, and `error` is why there are none: the outcomes hold
        all the same. Raises no FoqsError but Invalid, for a wrong argument. An ack that failed where items came is not
        repeated, because the leases of these run: give it to `ack_many`.
        """
        check_many("done", done)
        check_dequeue(topics, count, wait_ms, lease_ms, max_bytes, most=most)
        max_bytes = max_bytes or None
        given, counts = Entries(done, arguments.ack_entry), counts_of(topics, count, most)
        acks = given.good
        wait_until = monotonic() + wait_ms / 1000
        deadline = monotonic() + self._requests.timeout_s(timeout_ms)
        dequeue = partial(
            self.dequeue, counts, lease_ms=lease_ms, max_bytes=max_bytes, most=most, timeout_ms=timeout_ms
        )

        def ask(part: Part) -> Taken:
            one = partial(
                self.combined.ask, part, acks, counts, deadline, lease_ms=lease_ms, max_bytes=max_bytes, most=most
            )
            return one() if self.tracing is None else self.tracing.dequeue(counts, one)

        def wait() -> Items:
            return dequeue(wait_ms=max(0, int((wait_until - monotonic()) * 1000)))

        first = most_of(counts, most) is None
        part = self.combined.part(acks, counts, first=first) if acks else Part((), ())
        taken = ack_then_dequeue(acks, part, ask, partial(self.ack_many, timeout_ms=timeout_ms), wait)
        return taken._replace(outcomes=given.outcomes(taken.outcomes))

    # ------------------------------------------------------------------------------------- ack, nack, extend

    def ack(self, item: Leased, *, timeout_ms: int | None = None) -> None:
        """Ends the item: it is never delivered again. Raises StaleLease when another consumer has it by now,
        NotFound when it is gone.
        """
        try:
            usual = ack_request(self.namespace, item.id, item.lease)
        except AttributeError:
            check_leased("item", item)
            raise
        if usual is None:
            one_of(self.ack_many((item,), timeout_ms=timeout_ms))
            return
        to = self._router.order_for(item.id)
        found = self._requests.first(methods.ACK, second_answer.END_ITEM, usual, to, timeout_ms)
        if isinstance(found, First):
            given = Entries((item,), arguments.ack_entry)
            outcomes = self._each(methods.ACK, second_answer.END_ITEM, given, timeout_ms, found)
            del found  # as in `enqueue`
            one_of(outcomes)
        elif self._places.remembered:
            self._places.left((item.id,))

    @checked()
    def ack_many(self, items: Iterable[Leased], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`ack` for many: None for each that was done, else its error."""
        return self._each(methods.ACK, second_answer.END_ITEM, Entries(items, arguments.ack_entry), timeout_ms)

    # ------------------------------------------------------------------------------------- looking and operat

    @checked()
    def get_item(self, item_id: int | str, *, timeout_ms: int | None = None) -> Item:
        """The item with its `state`; leases nothing. An id may also be its text (see `parse_id`). Raises NotFound."""
        item_id = parse_id(item_id)
        response = self._requests.read(methods.GET_ITEM, idl.GetItemRequest(id=item_id), timeout_ms, item_id)
        item: Item = response.item
        item.state = response.state
        return item

    @checked(state=instance_of(ItemState, none=True))
    def list_items(
        self,
        topic: str,
        *,
        state: ItemState | None = None,
        page_items: int = 100,
        timeout_ms: int | None = None,
    ) -> Iterator[Item]:
        """All items of a topic, a page at a time; leases nothing, and is no snapshot."""
        request = idl.ListItemsRequest(ns=self.namespace, topic=topic, state=state, limit=page_items)
        return self._requests.pages(methods.LIST_ITEMS, request, lambda response: response.items, timeout_ms)

    @checked()
    def active_topics(
        self,
        *,
        all_namespaces: bool = False,
        all_states: bool = False,
        page_topics: int = 1_000,
        timeout_ms: int | None = None,
    ) -> Iterator[ActiveTopic]:
        """Topics with ready items (`all_states`: in any state, with counts), by namespace and topic, page by page."""
        ns = None if all_namespaces else self.namespace
        request = idl.GetActiveTopicsRequest(ns=ns, limit=page_topics, all=all_states or None)
        found = self._requests.pages(methods.TOPICS, request, lambda response: response.topics, timeout_ms)
        return map(ActiveTopic.of, found)

    @checked()
    def delete_items(self, item_ids: Iterable[int | str], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """Deletes items in any state, a live lease included. None for each that was deleted, else its error."""
        given, split = Entries(item_ids, parse_id), lambda ids: partial(self._router.split, ids)
        deleted = self._requests.each(methods.DELETE, second_answer.END_ITEM, given.good, split, timeout_ms)
        return given.outcomes(deleted)

    # ------------------------------------------------------------------------------------- life

    @property
    def waits(self) -> tuple[int, float]:
        """How often it asked again, and how many seconds it waited before; about, if threads share it."""
        return self._caller.retries, self._caller.waited_s

    def close(self) -> None:
        """Closes the connections. Calls under way end with their own; all later ones raise ClientClosed."""
        self._topics.close()
        self._router.close()
        self._caller.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.address!r}, {self.namespace!r})"

    def share(self) -> Share:
        """Return what counts the items of one worker on this client."""
        return self._places.share()

    # ------------------------------------------------------------------------------------- which host gets which item

    def _anywhere(self, items: Sequence[Any]) -> Split:
        return self._requests.anywhere

    def _by_id(self, items: Sequence[Any]) -> Split:
        return partial(self._router.split, [item.id for item in items])

    def _by_slot(self, specs: Sequence[ItemSpec]) -> Split:
        return partial(self._router.split_by_slot, [slot(self.namespace, spec.dedup_key) for spec in specs])


def _tracing(namespace: str) -> Tracing:
    from foqs.client.tracing import Tracing

    return Tracing(namespace)
