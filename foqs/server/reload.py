"""Give the values of live keys to the parts of a running host, after its configuration was read again."""

from __future__ import annotations

from foqs.api.auth import Guard
from foqs.api.handlers import Handlers
from foqs.config.load import Config
from foqs.engine.engine import Engine
from foqs.limits import Limits
from foqs.rpc.request_log import RequestLog
from foqs.rpc.server import ThriftServer
from foqs.server.neighbours import NoPeers, Peers
from foqs.shardmgr.breaker import BreakerSettings


def reconfigure(
    config: Config,
    *,
    engine: Engine,
    service: Handlers,
    server: ThriftServer,
    requests: RequestLog,
    guard: Guard,
    peers: Peers | NoPeers,
) -> None:
    limits = Limits(**config.limits.model_dump())
    service.limits = limits
    server.limit(limits)
    server.bound(
        config.server.max_connections,
        config.server.max_connections_per_address,
        config.server.frame_read_ms / 1000,
        config.server.idle_connection_ms / 1000,
    )
    peers.limit(limits)
    requests.bound(config.log.slow_request_ms)
    guard.read_again()
    engine.config = config
    breaker = BreakerSettings(**config.breaker.model_dump())
    for shard in engine.shards.values():
        shard.config = config.host
        shard.dedup_window_ms = config.limits.dedup_window_ms
        shard.breaker.settings = breaker
        shard.hang_ms = breaker.hang_ms
    for shard in engine.serving:  # with shorter delays, a shard may have something due now
        engine.touch(shard)
