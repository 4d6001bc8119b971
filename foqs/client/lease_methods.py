"""The calls by which a consumer gives leased items back or keeps them longer, and by which an operator takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from foqs import second_answer
from foqs.client import entries, methods
from foqs.client.entries import Entries
from foqs.client.items import Leased, Nack, Released
from foqs.client.options import checked
from foqs.client.requests import Requests
from foqs.client.tasks import First, Split, one_of
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.second_answer import Policy
from foqs.wire.client_codec import RemoteMethod


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
        return self._each(methods.NACK, second_answer.NACK, Entries(nacks, entries.nack), timeout_ms)

    @checked()
    def release(self, item: Leased, *, timeout_ms: int | None = None) -> None:
        """Gives back an item that was not begun: no delay, the attempt is not counted, at-most-once items as
        well.
        """
        one_of(self.release_many((item,), timeout_ms=timeout_ms))

    @checked()
    def release_many(self, items: Iterable[Leased], *, timeout_ms: int | None = None) -> list[FoqsError | None]:
        """`release` for many."""
        return self._each(methods.NACK, second_answer.RELEASE, Entries(items, entries.release), timeout_ms)

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
        extensions = Entries(items, partial(entries.extension, lease_ms=lease_ms))
        return self._each(methods.EXTEND, second_answer.EXTEND, extensions, timeout_ms)

    @checked()
    def begun_many(
        self, items: Iterable[Leased], *, begun: bool = True, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        """Says whether work on leased items was begun: the attempt of an item that was not begun is not counted if its
        lease ends by time. The leases end when they would have. An item of which nothing was said counts as begun.
        """
        marks = Entries(items, partial(entries.extension, begun=begun))
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
