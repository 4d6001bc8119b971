"""The asynchronous client: one method for each call of the service, retries where they are safe."""

from __future__ import annotations

import warnings  # async only
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Unpack

from foqs.bounds import DEFAULT_ADDRESS, LIMITS
from foqs.client import arguments, methods
from foqs.client._async.batch_calls import BatchCalls
from foqs.client._async.caller import Caller, OnRetry, Pool
from foqs.client._async.consumer_calls import AckDequeue, ConsumerCalls
from foqs.client._async.operator_calls import OperatorCalls
from foqs.client._async.requests import Requests
from foqs.client._async.router import Router, Topics
from foqs.client._async.settings_calls import SettingsCalls
from foqs.client._async.waits import when_forgotten
from foqs.client.arguments import Entries, checked, duration, faults_of, text
from foqs.client.call import First, id_of, single
from foqs.client.credential import Token
from foqs.client.items import ItemOptions, ItemSpec
from foqs.client.per_worker import Places, Share
from foqs.client.routes import hash_slot, parse_addresses
from foqs.client.timing import StopStrategy, Strategies, WaitStrategy
from foqs.client.tls import Securing, Tls
from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.ids import parse_id
from foqs.second_answer import END_ITEM, KEYED, ONCE
from foqs.travel import Local

if TYPE_CHECKING:
    from foqs.client.tracing import Tracing

_ONLY_SPECS = frozenset((ItemSpec,))
_PROGRAM_BYTES = 64
_LEFT_S = 1.0  # async only


class AsyncClient(ConsumerCalls, BatchCalls, OperatorCalls, SettingsCalls, Local):
    """A client of one namespace of a foqs service.

    It belongs to the event loop of its first call: in another loop, or in a forked child, a call raises WrongLoop. A
    call that is cancelled leaves its connection in order, and gives back the items that its reply leases.

    >>> async with AsyncClient("127.0.0.1:7707", "shop") as client:     # doctest: +SKIP
    ...     await client.enqueue("mail", b"to: someone", priority=-1)
    ...     for item in await client.dequeue("mail", count=10, wait_ms=5_000):
    ...         print(item.payload)
    ...         await client.ack(item)

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
    routing             learn the hosts of all shards, keep that fresh, and send requests straight there; then hosts
                        beyond `address` are called as well. False for one address in front of all
    wait_server         retry also while a server refuses connections, or TLS. False: if no server has answered a call
                        yet, such a call ends at once
    program             its name, such as "billing": where the server asks for no token, `SettingsStamp.by` has it with
                        the address of the machine
    tracing             make OpenTelemetry's spans, also in producers and workers on it, and have items carry the trace
                        context in their headers (docs/run/tracing.md). ImportError without the extra `foqs[otel]`
    on_retry            called as `on_retry(error, left_s)` before the first retry, and again after a minute without
                        any; `left_s`: how long the call continues. An exception of it is logged, and ignored.
                        Default: a warning in the log `foqs.client`
    retry_wait,         strategies of tenacity: the pause before a request is repeated (`wait_fixed(1)`), which the
    retry_stop          server may make longer; and the end of a call before its time (`stop_after_attempt(3)`).
                        Default: random pauses that double from 20 ms to 2 s, and no end but the time-out. An exception
                        of a strategy is logged, and the default counts

    Requests that failed without side effects are retried on another host.

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

    instead = "make an AsyncClient with the same arguments there"

    @checked(timeout_ms=duration(1), program=text(_PROGRAM_BYTES, none=True))
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
        max_frame_bytes: int = LIMITS.frame_bytes,
        routing: bool = True,
        wait_server: bool = True,
        program: str | None = None,
        tracing: bool = False,
        on_retry: OnRetry | None = None,
        retry_wait: WaitStrategy | None = None,
        retry_stop: StopStrategy | None = None,
    ) -> None:
        self.namespace = namespace
        self.address = address
        self.tracing = _tracing(namespace) if tracing else None
        addresses = parse_addresses(address)
        securing = None if tls is None else Securing(Tls.parse(tls) if isinstance(tls, str) else tls)
        credential = Token(token)
        pool = Pool(addresses, pool_size, connect_timeout_ms / 1000, max_idle_ms / 1000, securing)
        traceparent = None if self.tracing is None else self.tracing.traceparent
        strategies = Strategies(retry_wait, retry_stop)
        self._caller = Caller(
            pool, credential, attempt_timeout_ms, max_frame_bytes, traceparent, on_retry, wait_server, strategies,
            program,
        )  # fmt: skip
        self._router = Router(pool, credential, enabled=routing)
        self._places = Places(namespace, self._router.known)
        self._requests = Requests(self._caller, self._router, self._places, namespace, timeout_ms)
        self._topics = Topics(self._caller, self._router, namespace)
        self.combined = AckDequeue(self._requests, self._topics, self.tracing)
        self._caller.give_back = self.release_many  # async only
        when_forgotten(self, self._router.close)

    # ------------------------------------------------------------------------------------- enqueue

    async def enqueue(
        self, topic: str, payload: bytes, *, timeout_ms: int | None = None, **options: Unpack[ItemOptions]
    ) -> int:
        """Store one item and return its id: it is committed then. `options`: see `ItemOptions`.

        With a `dedup_key` that was used before it is a `Duplicate`, the id of the item that was stored then, or
        `Replaced` if that item has the new payload. Raises
        OutcomeUnknown when it may or may not have been stored, else the reason why it was not.
        """
        usual = None if self.tracing is not None else methods.enqueue_request(self.namespace, topic, payload, **options)
        if usual is None:
            return single(await self.enqueue_many((ItemSpec(topic, payload, **options),), timeout_ms=timeout_ms))
        to, key = self._router.only, options.get("dedup_key")
        policy = ONCE if key is None else KEYED
        if to is None:
            key = key or options.get("order_key")
            to = self._router.order_for_slot(hash_slot(self.namespace, key)) if key else self._router.order_for_new()
        found = await self._requests.first(methods.ENQUEUE, policy, usual, to, timeout_ms)
        if not isinstance(found, First):
            return found.id if not found.duplicate else id_of(found)
        outcomes = await self._enqueue_many((ItemSpec(topic, payload, **options),), timeout_ms, found)
        del found  # it may hold the error, whose traceback holds this frame
        return single(outcomes)

    @checked()
    async def enqueue_many(self, items: Iterable[ItemSpec], *, timeout_ms: int | None = None) -> list[int | FoqsError]:
        """Store items. Return the outcome of each, in order: its id, or the error that kept it from being stored.

        >>> await client.enqueue_many([ItemSpec("mail", b"a"), ItemSpec("", b"b")])   # doctest: +SKIP
        [1407374883553281, Invalid('topic is empty')]
        """
        specs = items if isinstance(items, list | tuple) else list(items)
        if not _ONLY_SPECS.issuperset(map(type, specs)):
            given = Entries(specs, arguments.spec_entry)
            if given.errors:
                return given.outcomes(await self.enqueue_many(given.good, timeout_ms=timeout_ms))
        if self.tracing is None or not specs:
            return await self._enqueue_many(specs, timeout_ms)
        with self.tracing.enqueue(specs) as sending:
            outcomes = sending.outcomes = await self._enqueue_many(sending.specs, timeout_ms)
            if refused := sending.refused():
                again = await self._enqueue_many(list(refused.values()), timeout_ms)
                for i, outcome in zip(refused, again, strict=True):
                    outcomes[i] = outcome
                if not all(isinstance(outcome, Invalid) for outcome in again):
                    with suppress(FoqsError):
                        info = await self.server_info()
                        self.tracing.learn(info.limits)
        return outcomes

    async def _enqueue_many(
        self, specs: Sequence[ItemSpec], timeout_ms: int | None, first: First | None = None
    ) -> list[int | FoqsError]:
        if first is None and (faults := faults_of(specs)):
            sound = [spec for at, spec in enumerate(specs) if at not in faults]
            stored = iter(await self._enqueue_many(sound, timeout_ms) if sound else ())
            return [faults[at] if at in faults else next(stored) for at in range(len(specs))]
        keyed = [spec for spec in specs if spec.dedup_key is not None]
        ordered = [spec for spec in specs if spec.order_key]
        if len(specs) in (len(keyed), len(ordered)) or not (keyed or ordered):
            return await self._requests.each(methods.ENQUEUE, KEYED if keyed else ONCE, specs, timeout_ms, first)
        plain = [spec for spec in specs if spec.dedup_key is None and not spec.order_key]
        of_keyed, of_ordered, of_plain = [
            iter(await self._requests.each(methods.ENQUEUE, KEYED if part is keyed else ONCE, part, timeout_ms))
            for part in (keyed, ordered, plain)
        ]
        return [
            next(of_keyed if spec.dedup_key is not None else of_ordered if spec.order_key else of_plain)
            for spec in specs
        ]

    @checked()
    async def delete_items(
        self, item_ids: Iterable[int | str], *, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """Delete items in any state, a live lease included. Return None for each that was deleted, else its error."""
        given = Entries(item_ids, parse_id)
        return given.outcomes(await self._requests.each(methods.DELETE, END_ITEM, given.good, timeout_ms))

    @checked()
    async def cancel(self, dedup_key: str, *, leased: bool = False, timeout_ms: int | None = None) -> bool:
        """Remove the item that has the key, and free the key. Return False if the item has ended, or if a consumer has
        it; with `leased` its consumer loses it, which it learns at its next extension or ack. Raises NotFound when
        no item has the key.

        After a lost reply the request is repeated: NotFound may then mean that the first one has removed the item, and
        an item that was enqueued with the key in between is removed, too.
        """
        request = idl.CancelItemRequest(self.namespace, dedup_key, leased or None)
        response = await self._requests.call(methods.CANCEL, request, timeout_ms, policy=KEYED)
        return bool(response.removed)

    # ------------------------------------------------------------------------------------- life

    @property
    def waits(self) -> tuple[int, float]:
        """The number of repeated requests, and the seconds of waits before them: about, if several callers share it."""
        return self._caller.retries, self._caller.waited_s

    async def close(self) -> None:
        """Close the connections. Calls that wait for a reply still get it; all later calls raise ClientClosed."""
        self._requests.owner.check()  # async only
        await self._topics.end()  # async only
        await self._router.end()  # async only
        await self._caller.finished(_LEFT_S)  # async only
        self._topics.close()
        self._router.close()
        self._caller.close()

    def __del__(self) -> None:  # async only
        requests: Requests | None = self.__dict__.get("_requests")  # none, if an argument was refused
        if requests is not None and requests.owner.here and not requests.caller.closed:
            text = f"unclosed {self!r}: await its close(), or use `async with`"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.address!r}, {self.namespace!r})"

    def share(self) -> Share:
        """Return what counts the items of one worker on this client."""
        return self._places.share()


def _tracing(namespace: str) -> Tracing:
    from foqs.client.tracing import Tracing

    return Tracing(namespace)
