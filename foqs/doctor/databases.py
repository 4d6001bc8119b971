"""Checks the shards' databases: servers in parallel, the shards of one server one after another.

So the check waits only once for a server that hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from foqs.config.load import Config
from foqs.doctor.check import Check, Group, Verdict, apart, numbers
from foqs.store.checkup import Checkup, check_up
from foqs.store.link import place_of
from foqs.store.protocol import StoreError
from foqs.store.server import Finding

_PER_SHARD = 3
"""A check of a shard sends several queries; together they may take this many time-outs."""
_FEW = 4
Outcome = Checkup | str | None
"""The findings, or the reason why the database did not answer, or None if its server did not answer before."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requirements of the configuration on a server."""

    item_bytes: int
    clock_jump_ms: int


def wanted_of(config: Config) -> Wanted:
    limits = config.limits
    return Wanted(limits.payload_bytes + limits.metadata_bytes + limits.headers_bytes, config.host.clock_jump_ms)


async def examine(urls: Mapping[int, str], wanted: Wanted, timeout_s: float) -> list[Check]:
    """Check the databases; `urls` are by number of the shard."""
    servers: dict[str, list[int]] = defaultdict(list)
    for shard in sorted(urls):
        servers[_server(urls[shard])].append(shard)
    found = await asyncio.gather(*(_ask({n: urls[n] for n in shards}, timeout_s) for shards in servers.values()))
    return [check for name, outcomes in zip(servers, found, strict=True) for check in verdicts(name, outcomes, wanted)]


def _server(url: str) -> str:
    place = place_of(url)
    if place is None:
        return "no url"
    server, _ = place
    return "sqlite files" if server.startswith("sqlite") else server.replace("+pymysql", "").replace("+mysqldb", "")


async def _ask(urls: Mapping[int, str], timeout_s: float) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = dict.fromkeys(urls)
    for shard, url in urls.items():
        look = partial(check_up, url, shard, timeout_s=timeout_s, now_ms=lambda: time.time() * 1000)
        try:
            outcomes[shard] = await apart(look, _PER_SHARD * timeout_s)
        except TimeoutError:
            outcomes[shard] = "the database does not answer in time"
        except StoreError as error:
            outcomes[shard] = str(error)
        if isinstance(outcomes[shard], str) and not url.startswith("sqlite"):
            return outcomes
    return outcomes


# ------------------------------------------------------------------------------------------------ verdicts


def verdicts(server: str, outcomes: Mapping[int, Outcome], wanted: Wanted) -> list[Check]:
    """Return a check for the server, and one for each fault with the shards that have it."""
    looked = {shard: one for shard, one in outcomes.items() if isinstance(one, Checkup)}
    checks = [_check(server, Verdict.OK, _summary(looked))] if any(one.server for one in looked.values()) else []
    silent: dict[str, list[int]] = defaultdict(list)
    for shard, outcome in outcomes.items():
        if isinstance(outcome, str):
            silent[outcome].append(shard)
    for why, which in silent.items():
        mend = "start the server, open the network to it, or correct the shard's url"
        checks.append(_check(server, Verdict.WRONG, f"{_shards(which)}: {why}", mend))
    findings: dict[Finding, list[int]] = defaultdict(list)
    for shard, one in looked.items():
        for finding in dict.fromkeys(one.findings):
            findings[finding].append(shard)
    for finding, which in findings.items():
        where = "" if checks and len(which) == len(outcomes) else f"{_shards(which)}: "
        checks.append(_check(server, *_stated(finding, where)))
    checks += [_check(server, *_stated(finding)) for finding in _of_server(list(looked.values()), wanted)]
    if left := [shard for shard, outcome in outcomes.items() if outcome is None]:
        checks.append(
            _check(server, Verdict.SKIPPED, f"{_shards(left)}: the server did not answer for an earlier shard")
        )
    return checks


def _of_server(looked: Sequence[Checkup], wanted: Wanted) -> list[Finding]:
    """Compare the answers of one server with the configuration."""
    found = []
    clocks = [one.clock_ms for one in looked if one.clock_ms is not None]
    if clocks:
        least, most = max(low for low, _ in clocks), min(high for _, high in clocks)
        off, way = (least, "ahead of") if least > 0 else (-most, "behind")
        if off > wanted.clock_jump_ms:
            why = f"the server's clock is {off:,} ms or more {way} this machine's (host.clock_jump_ms is less)"
            found.append(Finding(why, "synchronise both clocks with NTP", wrong=False))
    packets = [one.max_packet_bytes for one in looked if one.max_packet_bytes is not None]
    if packets and min(packets) // 2 < wanted.item_bytes:
        why = f"max_allowed_packet is {min(packets)}: items of more than {min(packets) // 2} bytes are refused"
        mend = "raise it above twice limits.payload_bytes, or lower limits.payload_bytes"
        found.append(Finding(why, mend, wrong=False))
    connections = [one.max_connections for one in looked if one.max_connections is not None]
    if connections and min(connections) < 2 * len(looked):
        why = f"max_connections is {min(connections)}, but {len(looked)} open shards need {2 * len(looked)}"
        found.append(
            Finding(why, "raise it with SET GLOBAL max_connections, and in the server's configuration", wrong=False)
        )
    return found


def _summary(looked: Mapping[int, Checkup]) -> str:
    parts = [", ".join(dict.fromkeys(one.server for one in looked.values() if one.server)), _shards(looked)]
    clocks = [one.clock_ms for one in looked.values() if one.clock_ms is not None]
    if clocks:
        parts.append(f"clock {max(low for low, _ in clocks):+} to {min(high for _, high in clocks):+} ms")
    owners: dict[str, list[int]] = defaultdict(list)
    for shard, one in looked.items():
        if one.owner is not None:
            owners[one.owner or "none"].append(shard)
    if 0 < len(looked) <= _FEW:
        listed = [
            f"{shard}: {one.owner or 'none'} (epoch {one.epoch})"
            for shard, one in looked.items()
            if one.epoch is not None
        ]
    else:
        listed = [f"{numbers(which)}: {owner}" for owner, which in owners.items()]
    return "; ".join([*parts, f"owners: {', '.join(listed)}"] if listed else parts)


def _stated(finding: Finding, where: str = "") -> tuple[Verdict, str, str]:
    return (Verdict.WRONG if finding.wrong else Verdict.WARNING), where + finding.found, finding.mend


def _shards(which: Iterable[int]) -> str:
    found = list(which)
    return f"shard{'s' if len(found) > 1 else ''} {numbers(found)}"


def _check(server: str, verdict: Verdict, found: str, mend: str = "") -> Check:
    return Check(Group.DATABASES, server, verdict, found, mend)
