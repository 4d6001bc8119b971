"""GetServerInfo: the host's version, its limits, its clock, and how much its shards have done and hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from foqs import __version__
from foqs.bounds import Limits
from foqs.engine.engine import Engine
from foqs.hooks.protocol import SCRIPT_BYTES
from foqs.idl import idl
from foqs.policies.settings import MOST_BYTES, VALUE_BYTES
from foqs.rpc.call import Call

FIXED = {"settings_bytes": MOST_BYTES, "settings_value_bytes": VALUE_BYTES, "script_bytes": SCRIPT_BYTES}
"""Limits that no configuration changes: ZooKeeper takes no larger record."""
_KEPT_MS = 1_000
"""A count adds up all namespaces of all shards, and any client may ask for one."""


class Info:
    """`limits` is called for each answer: SIGHUP replaces them."""

    def __init__(self, engine: Engine, limits: Callable[[], Limits], now_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._items: Mapping[int, int] = {}
        self._counted_ms: int | None = None

    def server_info(self, call: Call) -> None:
        now_ms = self._now_ms()
        rows = {shard.number: shard.rows_changed for shard in self._engine.serving if shard.healthy(now_ms)}
        items = self._count() if call.request.count_items else None
        limits = {**self._limits().as_map(), **FIXED}
        call.reply(idl.GetServerInfoResponse(__version__, limits, rows, items, now_ms))

    def _count(self) -> Mapping[int, int]:
        now_ms = self._now_ms()
        if self._counted_ms is None or not 0 <= now_ms - self._counted_ms < _KEPT_MS:
            self._counted_ms = now_ms
            self._items = {shard.number: sum(shard.totals.values()) for shard in self._engine.serving}
        return self._items
