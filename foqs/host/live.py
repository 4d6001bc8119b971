"""A configuration that changed while the host runs: the values of its live keys go to those who hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foqs.config import Config
from foqs.limits import Limits
from foqs.shardmgr.breaker import BreakerSettings

if TYPE_CHECKING:
    from foqs.host.node import Node


def reconfigure(config: Config, node: Node) -> None:
    host, server = node.host, node.server
    limits = Limits(**config.limits.model_dump())
    node.service.limits = limits
    server.limit(limits)
    server.bound(
        config.server.max_connections,
        config.server.max_connections_per_address,
        config.server.frame_read_ms / 1000,
        config.server.idle_connection_ms / 1000,
    )
    if node.caller is not None:
        node.caller.limits = limits
    node.requests.bound(config.log.slow_request_ms)
    node.guard.read_again()
    host.config = config
    breaker = BreakerSettings(**config.breaker.model_dump())
    for shard in host.shards.values():
        shard.config = config.host
        shard.dedup_window_ms = config.limits.dedup_window_ms
        shard.breaker.settings = breaker
        shard.hang_ms = breaker.hang_ms
    for shard in host.serving:  # what waited in time may be late by now
        host.touch(shard)
