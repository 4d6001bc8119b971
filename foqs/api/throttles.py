"""GetThrottles: the throttle keys in use, with their tokens and slots, and the items that wait for more of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import validation
from foqs.bounds import Limits
from foqs.checks import is_text
from foqs.engine import stats
from foqs.engine.engine import Engine
from foqs.engine.listing import cursor_of, parts_of
from foqs.engine.stats import Coordinated
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.gather import ANSWER_MS, Reported, ThrottleReports
from foqs.peers.lease_coordinator import SlotCoordinator
from foqs.peers.token_coordinator import QuotaCoordinator
from foqs.policies.entries import NAME_BYTES
from foqs.rpc.call import Call

MOST_THROTTLES = 1_000


class ThrottleMethods:
    """`limits` is called for each request; `address` is this host's, as clients know it."""

    def __init__(
        self,
        engine: Engine,
        limits: Callable[[], Limits],
        now_ms: Callable[[], int],
        address: Callable[[], str],
        coordinator: QuotaCoordinator,
        slots: SlotCoordinator,
        forwarder: Forwarder | LoneForwarder,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._address = address
        self._coordinator = coordinator
        self._slots = slots
        self._forwarder = forwarder

    def throttles(self, call: Call) -> None:
        """Raises Invalid."""
        request, limits = call.request, self._limits()
        ns, prefix = validation.name(request.ns, "ns", limits), request.prefix or ""
        if not is_text(prefix) or len(prefix.encode()) > NAME_BYTES:
            raise Invalid(f"prefix is not UTF-8, or has more than {NAME_BYTES} bytes")
        limit = validation.within(request.limit, "limit", 1, MOST_THROTTLES, 100)
        parts = parts_of(request.cursor, (str,))
        after = "" if parts is None else parts[0]
        deadline_ms = self._now_ms() + min(validation.timeout_ms(request, limits), ANSWER_MS)

        def done(reports: ThrottleReports, missing: list[str]) -> None:
            throttle, found = self._engine.policies.namespace(ns).throttle, reports.stats
            names = sorted(found)[:limit]
            rows: list[Any] = []
            for name in names:
                rule, one = throttle(name), found[name]
                rows.append(
                    idl.ThrottleStats(
                        key=name,
                        setting=rule.setting if rule is not None else "",
                        per_second=rule.per_second if rule is not None else None,
                        burst=rule.burst if rule is not None and rule.per_second is not None else None,
                        tokens=one.tokens,
                        concurrency=rule.concurrency if rule is not None else None,
                        taken=one.taken,
                        free=one.free,
                        overage=one.overage,
                        reclaimed=one.reclaimed,
                        parked_flows=one.parked_flows,
                        parked_items=one.parked_items,
                        longest_wait_ms=one.longest_wait_ms,
                        shadow_held=one.shadow_held,
                        coordinator=reports.coordinators.get(name, ""),
                    )
                )
            cursor = cursor_of(names[-1]) if len(names) == limit else None
            call.reply(idl.GetThrottlesResponse(rows, cursor, missing))

        def counted(here: Reported) -> None:
            reports = ThrottleReports(here, self._address())
            part = partial(idl.GetThrottlesRequest, ns, request.prefix, request.limit, request.cursor)
            self._forwarder.ask_others("GetThrottles", part, request, deadline_ms, reports.add, partial(done, reports))

        keys = [*self._coordinator.keys(), *self._slots.keys()]
        coordinated = Coordinated(keys, self._coordinator.tokens_of, self._slots.slots_of)
        stats.throttles_of(self._engine, coordinated, ns, prefix, after, limit, counted)
