"""Asks each living host of a cluster for its version, and for the items and the load of its shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foqs.shardmgr.status import HostAnswer

if TYPE_CHECKING:
    from foqs.config.load import Config
    from foqs.peers.ready_topics import Ask

TIMEOUT_MS = 2_000
SAMPLE_S = 1.0
"""Time between two requests; the load is the difference of their counters."""


async def ask_hosts(config: Config, addresses: Mapping[str, str]) -> dict[str, HostAnswer]:
    """Return the answers of the hosts by their ids, without hosts that do not answer."""
    from foqs.api.auth import proof_of
    from foqs.bounds import Budget, Limits
    from foqs.rpc.peer_caller import PeerCaller
    from foqs.rpc.tls import peer_context

    limits = Limits(**config.limits.model_dump())
    caller = PeerCaller(limits, Budget(config.host.budget_bytes), tls=peer_context(config.tls), report=lambda *_: None)
    secret = config.auth.cluster_secret if config.auth is not None else None
    proof = None if secret is None else proof_of(secret)
    try:
        first = await _round(caller.call, addresses, proof)
        if not first:
            return {}
        began_s = time.monotonic()
        await asyncio.sleep(SAMPLE_S)
        second = await _round(caller.call, {host: addresses[host] for host in first}, proof)
        return {host: _answer(first[host], second[host], time.monotonic() - began_s) for host in second}
    finally:
        caller.close()


def _answer(before: Any, after: Any, seconds: float) -> HostAnswer:
    rows_before, rows = before.shard_rows or {}, after.shard_rows or {}
    # A count that fell was reset: the shard was opened in between.
    rates = {n: round((rows[n] - rows_before[n]) / seconds, 1) for n in rows if rows_before.get(n, 1 << 63) <= rows[n]}
    return HostAnswer(after.version, rates, after.shard_items or {})


async def _round(ask: Ask, addresses: Mapping[str, str], proof: str | None) -> dict[str, Any]:
    answers = await asyncio.gather(*(_one(ask, address, proof) for address in addresses.values()))
    return {host: answer for host, answer in zip(addresses, answers, strict=True) if answer is not None}


async def _one(ask: Ask, address: str, proof: str | None) -> Any:
    from foqs.idl import idl

    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(response: Any, error: Exception | None) -> None:
        if not answer.done():
            answer.set_result(None if error is not None else response)

    request = idl.GetServerInfoRequest(count_items=True, context=idl.RequestContext(host_proof=proof))
    ask(address, "GetServerInfo", request, TIMEOUT_MS, done)
    return await answer
