"""The delivery of one target: takes items of its topic, sends each, and ends it as the reply says."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from ssl import SSLContext
from time import monotonic, time

import structlog

from foqs.bounds import LIMITS
from foqs.client import AsyncClient, AsyncJob, AsyncWorker, Item, Reject, Retry
from foqs.client.handlers import bounded
from foqs.push.addresses import Allow
from foqs.push.envelope import request_of
from foqs.push.exchange import Exchange, Lookup, look_up
from foqs.push.meter import Meter
from foqs.push.replies import MOST_BODY_BYTES, Settlement, settlement
from foqs.push.signing import Secrets
from foqs.push.target import Target

log = structlog.get_logger("foqs.push")

LEASE_MORE_MS = 15_000
"""A lease lasts this much longer than a request may take, and is extended while the process lives."""
GRACE_MORE_MS = 2_000
"""The time for the outcomes after the last request of a target that changes."""
WORKER_BYTES = 128
_LIMITS_TIMEOUT_MS = 5_000
MOST_PAUSE_S = 1.0
"""The longest pause before a request to an endpoint that fails: requests that fail at once would take the processor's
time from the other targets."""
_FIRST_PAUSE_S = 0.01
FAILING_S = 60.0
WORKING_S = 10.0
"""An endpoint works again when a request succeeds this long after the last failure."""
_HIDDEN = ()
"""What the client logs of a failed attempt then: nothing. There would be a traceback for each reply."""


class PushFailed(Exception):
    """The attempt has failed, and the retry rule of the topic counts."""


@dataclass(frozen=True)
class Plan:
    """All that a delivery depends on. If it changes, another delivery takes its place."""

    target: Target
    allow: Allow
    secrets: Secrets


class Delivery:
    """From its start to its end. Raises Invalid for a URL that may not be reached, and for a secret that is missing or
    cannot be used: no item is taken then."""

    def __init__(
        self, client: AsyncClient, plan: Plan, meter: Meter, lookup: Lookup = look_up, tls: SSLContext | None = None
    ) -> None:
        plan.secrets.check(plan.target)
        self._client = client
        self._target = plan.target
        self._secrets = plan.secrets
        self._meter = meter
        self._exchange = Exchange(plan.target, plan.allow, lookup=lookup, tls=tls)
        self._health = Health(plan.target)
        self._worker: AsyncWorker | None = None
        self._result_bytes = 0
        self._grace_ms: float = plan.target.timeout_ms + GRACE_MORE_MS

    async def run(self, changed: asyncio.Event) -> None:
        """Deliver until `changed` is set, and then until the requests at work have ended. Raises FoqsError for what
        keeps it from its items, such as Forbidden."""
        target = self._target
        try:
            limits = (await self._client.server_info(timeout_ms=_LIMITS_TIMEOUT_MS)).limits
            self._result_bytes = limits.get("result_bytes", MOST_BODY_BYTES)
            async with self._made(limits.get("lease_max_ms", LIMITS.lease_max_ms)) as worker:
                place = str(self._exchange.endpoint)
                log.info("push.started", ns=target.ns, name=target.name, topic=target.topic, endpoint=place)
                joined = asyncio.ensure_future(worker.join())
                waited = asyncio.ensure_future(changed.wait())
                try:
                    await asyncio.wait((joined, waited), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waited.cancel()
                worker.stop(self._grace_ms)
                try:
                    await joined
                finally:
                    log.info("push.ended", ns=target.ns, name=target.name, items=str(worker.counts))
        finally:
            await self._exchange.close()

    def hurry(self, grace_ms: float) -> None:
        """End, and cut off the requests that are at work after `grace_ms`."""
        self._grace_ms = min(grace_ms, self._grace_ms)
        if self._worker is not None:
            self._worker.stop(self._grace_ms)

    def _made(self, lease_max_ms: int) -> AsyncWorker:
        target = self._target
        self._worker = AsyncWorker(
            self._client,
            target.topic,
            self._handle,
            concurrency=target.concurrency,
            lease_ms=min(target.timeout_ms + LEASE_MORE_MS, lease_max_ms),
            report_errors=True,
            name=bounded(f"push {target.name} {socket.gethostname()}:{os.getpid()}", WORKER_BYTES),
        )
        self._worker.life.tells = False
        return self._worker

    async def _handle(self, item: Item, job: AsyncJob) -> None:
        if (pause_s := self._health.pause_s()) and await job.stopping.wait(pause_s):
            job.release()
            return
        with self._meter.request(self._target.name) as ended:
            reply = await self._exchange.send(request_of(item, self._target, self._secrets, time()))
            settled = settlement(reply, time())
            ended.append(settled.end)
        self._health.note(settled, monotonic())
        match settled.end:
            case "ack":
                # A host that refused the result would have the request repeated.
                job.result = settled.result if len(settled.result or b"") <= self._result_bytes else None
            case "release":
                raise Retry(settled.delay_ms, counts=False)
            case "reject":
                job.held.along = _HIDDEN
                raise Reject(settled.reason)
            case "fail":
                job.held.along = _HIDDEN
                raise PushFailed(settled.reason)


class Health:
    """Slows down the requests to an endpoint that fails, until one succeeds. It tells operators that it fails, at most
    once a minute, and that it works again: not each failure, which the items and the metrics have. Times are
    seconds of the monotonic clock."""

    def __init__(self, target: Target) -> None:
        self._ns, self._name = target.ns, target.name
        self._concurrency = target.concurrency
        self._in_a_row = 0
        self._failures = 0  # since the last line
        self._failed_at = 0.0
        self._told_at: float | None = None

    def pause_s(self) -> float:
        """Return how long the next request waits. The first failures in a row, one for each request at a time, may have
        one cause and bring no pause. Each further failure doubles it."""
        further = min(self._in_a_row - self._concurrency, 16)
        return 0.0 if further <= 0 else min(MOST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (further - 1))

    def note(self, settled: Settlement, now: float) -> None:
        if settled.end == "ack":
            if self._told_at is not None and now - self._failed_at >= WORKING_S:
                log.info("push.working", ns=self._ns, name=self._name)
                self._told_at, self._failures = None, 0
            self._in_a_row = 0
            return
        if settled.end == "reject":  # of this item: the endpoint is at work
            self._in_a_row = 0
        else:
            self._in_a_row += 1
        self._failures += 1
        self._failed_at = now
        if self._told_at is None or now - self._told_at >= FAILING_S:
            log.warning(
                "push.failing",
                ns=self._ns,
                name=self._name,
                outcome=settled.end,
                reason=settled.reason,
                failures=self._failures,
            )
            self._told_at, self._failures = now, 0
