"""The core of a push process: one delivery for each target, which begins, changes and ends as the settings say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from ssl import SSLContext

import structlog

from foqs.bounds import WORKER_GRACE_MS
from foqs.client import AsyncClient
from foqs.client.guard import text_of
from foqs.client.timing import Backoff
from foqs.errors import FoqsError, Invalid
from foqs.push.addresses import Allow
from foqs.push.delivery import Delivery, Plan
from foqs.push.exchange import Lookup, look_up
from foqs.push.meter import Meter
from foqs.push.signing import Secrets
from foqs.push.target import Target

log = structlog.get_logger("foqs.push")

_AGAIN = Backoff(first_ms=1_000, longest_ms=10_000)
"""Until a delivery that an error ended begins again."""


class Pusher:
    """Delivers the items of one namespace. It belongs to the event loop of its client.

    >>> pusher = Pusher(client)                                                    # doctest: +SKIP
    >>> pusher.follow(targets, allow, secrets)
    >>> await pusher.stop()

    client  each target has a long poll of its own, so its `pool_size` is 0: no limit
    meter   counts the requests of all targets
    lookup  resolves names, in threads
    tls     default: the authorities that the system trusts
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        meter: Meter | None = None,
        lookup: Lookup = look_up,
        tls: SSLContext | None = None,
    ) -> None:
        self.meter = meter or Meter()
        self._client = client
        self._lookup = lookup
        self._tls = tls
        self._tasks: dict[str, _Kept] = {}

    def follow(self, targets: Iterable[Target], allow: Allow, secrets: Secrets) -> None:
        """Make these the targets. Call it with each change; without one it does nothing. A target that changes ends its
        requests first, so there are never more than its `concurrency`; the other targets are left alone. A target that
        cannot be delivered takes no items, and the log says why. Raises Invalid, and does nothing, for a target of
        another namespace and for two with one name.
        """
        plans: dict[str, Plan] = {}
        for target in targets:
            if target.ns != self._client.namespace:
                raise Invalid(f"target {target.name} is of namespace {target.ns}, not {self._client.namespace}")
            if target.name in plans:
                raise Invalid(f"two targets have the name {target.name}")
            plans[target.name] = Plan(target, allow, secrets.of(target))
        for name in self._tasks.keys() | plans.keys():
            kept = self._tasks.get(name)
            if kept is None or kept.task.done():
                kept = self._tasks[name] = _Kept(self._begin)
            kept.plan(plans.get(name))
        for name in [name for name, kept in self._tasks.items() if kept.task.done()]:
            del self._tasks[name]

    def names(self) -> list[str]:
        """Return the names of the targets, also of targets that end."""
        return sorted(name for name, kept in self._tasks.items() if not kept.task.done())

    def waiting(self) -> dict[str, str]:
        """Return the targets that take no items, by name, with the reason of each."""
        return {name: kept.error for name, kept in self._tasks.items() if kept.error}

    async def stop(self, grace_ms: float = WORKER_GRACE_MS) -> None:
        """Take no more items, and wait up to `grace_ms` for the requests at work. Items whose requests are cut off come
        again, without an attempt counted. A second call, in another task, may shorten the grace."""
        tasks = list(self._tasks.values())
        for kept in tasks:
            kept.plan(None)
            kept.hurry(grace_ms)
        if tasks:
            await asyncio.wait([kept.task for kept in tasks])

    def _begin(self, plan: Plan) -> Delivery:
        return Delivery(self._client, plan, self.meter, self._lookup, self._tls)


class _Kept:
    """The task of one name. It has one delivery at a time: the next plan waits until the last requests have ended."""

    def __init__(self, begin: Callable[[Plan], Delivery]) -> None:
        self.error = ""  # why it takes no items
        self._begin = begin
        self._plan: Plan | None = None
        self._changed = asyncio.Event()
        self._delivery: Delivery | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def plan(self, plan: Plan | None) -> None:
        """None: there is no such target any longer."""
        if plan != self._plan:
            self._plan = plan
            self._changed.set()

    def hurry(self, grace_ms: float) -> None:
        if self._delivery is not None:
            self._delivery.hurry(grace_ms)

    async def _run(self) -> None:
        failures = 0
        await self._changed.wait()
        while (plan := self._plan) is not None:
            self._changed.clear()
            pause_s: float | None = None
            try:
                self._delivery = self._begin(plan)
                self.error = ""
                await self._delivery.run(self._changed)
                failures = 0
            except Invalid as error:  # it stays wrong until the settings or the configuration change
                self.error = error.message
                log.error("push.refused", ns=plan.target.ns, name=plan.target.name, error=error.message)
            except Exception as error:
                failures += 1
                pause_s = _AGAIN.delay_ms(failures, random.random) / 1000
                self.error = text_of(error) or type(error).__name__
                log.error(
                    "push.stopped", ns=plan.target.ns, name=plan.target.name, error=self.error,
                    again_s=round(pause_s, 1), exc_info=not isinstance(error, FoqsError),
                )  # fmt: skip
            finally:
                self._delivery = None
            if self.error:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
