"""Run all checks: of this machine, of ZooKeeper, and of the databases. Independent checks run in parallel.

ZooKeeper is checked server by server, then the nodes below the root, and this host's rights there. Database servers are
checked in parallel, the shards of one server one after another. So a server that hangs costs one wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from foqs.checks import counted
from foqs.config.load import Config
from foqs.config.schema import ZookeeperSection
from foqs.doctor import host
from foqs.doctor.check import Check, Group, Verdict, apart, numbers, said
from foqs.errors import FoqsError
from foqs.shardmgr.facts import HostFact, ShardFact
from foqs.store.checkup import Checkup, check_up
from foqs.store.link import place_of
from foqs.store.passwords import has_password, placed
from foqs.store.protocol import StoreError
from foqs.store.server import Finding
from foqs.zk.inspect import RootCheckup, ServerCheckup, check_root, check_server

OLDEST = (3, 5)
"""The oldest version with the same client protocol as the tested ones."""
_MANY_NAMES = 5
_LOST = "if ZooKeeper lost its data and no host runs that knows it, `foqs cluster import`"
_START = "start the server, open the network to it, or correct zookeeper.hosts"
_PER_SHARD = 3
"""A check of a shard sends several queries; together they may take this many time-outs."""
_FEW = 4
PASSWORD_REMEDY = (
    "write it into a file of store.secrets_dir, and give the URL without it: "
    "foqs shards set-url ID 'mysql+pymysql://USER@HOST/DATABASE?password_file=NAME'"
)
Outcome = Checkup | str | None
"""The findings, or the reason why the database did not answer, or None if its server did not answer before."""

_zookeeper_check = partial(Check, Group.ZOOKEEPER)
_database_check = partial(Check, Group.DATABASES)


async def examine(path: Path, processes: Sequence[int], timeout_s: float) -> list[Check]:
    """Check the configuration at `path` and all that it names.

    `processes` are the distances of the processes' ports above the configured ones. `timeout_s` bounds each wait.
    """
    config, checks = host.read_configuration(path)
    if config is None:
        why = "the configuration is not valid"
        groups = [group for group in Group if group is not Group.CONFIGURATION]
        return checks + [Check(group, Verdict.SKIPPED, "all", why) for group in groups]
    checks += host.dangers(config, host.this_machine(), max(1, len(processes)))
    checks += host.examine_tls(config, host.advertised(config), time.time())
    found = await asyncio.gather(
        host.examine_ports(config, processes, timeout_s), _examine_cluster(config, processes, timeout_s)
    )
    return [check for part in (checks, *found) for check in part]


async def _examine_cluster(config: Config, processes: Sequence[int], timeout_s: float) -> list[Check]:
    """Check ZooKeeper, which lists the shards of a cluster, and the databases."""
    checks: list[Check] = []
    urls: Mapping[int, str] = {section.id: section.url for section in config.shards}
    if config.zookeeper is not None:
        checks, root = await examine_zookeeper(config.zookeeper, timeout_s)
        if root is not None:
            here = await host.running_host(config, processes, timeout_s)
            lost = lost_data_checks(root, config.zookeeper, here)
            if any(check.verdict is Verdict.WRONG for check in lost):  # that is why the root is empty
                vague = Verdict.WARNING, config.zookeeper.root
                checks = [check for check in checks if (check.verdict, check.name) != vague]
            checks += lost
        if root is None:
            why = "the list of shards is in ZooKeeper, which could not be read"
            return [*checks, _database_check(Verdict.SKIPPED, "all", why)]
        urls = {shard.id: shard.url for shard in root.shards}
        checks += password_checks(urls)
    urls = {shard: placed(url, config.store.secrets_dir) for shard, url in urls.items()}
    return checks + await examine_databases(urls, wanted_of(config), timeout_s)


# ------------------------------------------------------------------------------------------------ ZooKeeper


async def examine_zookeeper(config: ZookeeperSection, timeout_s: float) -> tuple[list[Check], RootCheckup | None]:
    """Check ZooKeeper. Return None in place of the root if it could not be read."""
    names = config.hosts.split(",")
    outcomes = await asyncio.gather(*(_ask_server(name, config, timeout_s) for name in names))
    checks = [zookeeper_server_check(name, outcome, config) for name, outcome in zip(names, outcomes, strict=True)]
    alive = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, ServerCheckup)]
    if not alive:
        return [*checks, _zookeeper_check(Verdict.SKIPPED, config.root, "no server answers")], None
    # kazoo waits for a server that hangs before it tries the next one.
    reachable = config.model_copy(update={"hosts": ",".join(alive)})
    try:
        root = await apart(partial(check_root, reachable, timeout_s), 3 * timeout_s)
    except TimeoutError:
        sasl = ", and check that it has SASL set up" if config.auth_scheme == "sasl" else ""
        mend = f"look at ZooKeeper's log{sasl}"
        return [*checks, _zookeeper_check(Verdict.WRONG, config.root, "no answer in time", mend)], None
    except FoqsError as error:
        mend = "correct zookeeper.auth_scheme and zookeeper.auth_credential, or look at ZooKeeper's log"
        return [*checks, _zookeeper_check(Verdict.WRONG, config.root, error.message, mend)], None
    return [*checks, *zookeeper_root_checks(root, config)], root


async def _ask_server(name: str, config: ZookeeperSection, timeout_s: float) -> ServerCheckup | str:
    host, _, port = name.rpartition(":")
    work = partial(check_server, config, host.strip("[]"), int(port), timeout_s)
    try:
        return await apart(work, 3 * timeout_s)
    except OSError as error:  # a TimeoutError is one
        return said(error)
    except FoqsError as error:
        return error.message


def zookeeper_server_check(name: str, outcome: ServerCheckup | str, config: ZookeeperSection) -> Check:
    if isinstance(outcome, str):
        return _zookeeper_check(Verdict.WRONG, name, outcome, _START)
    found = [int(part) for part in outcome.version.split(".")[:2] if part.isdigit()]
    version = outcome.version or "of unknown version"
    if len(found) == len(OLDEST) and tuple(found) < OLDEST:
        mend = f"upgrade it to {'.'.join(map(str, OLDEST))} or newer"
        return _zookeeper_check(Verdict.WRONG, name, f"ZooKeeper {version} is too old", mend)
    if outcome.session_ms != config.session_timeout_ms:
        asked = config.session_timeout_ms
        why = f"the server grants sessions of {outcome.session_ms} ms, but zookeeper.session_timeout_ms is {asked}"
        mend = "set it between minSessionTimeout and maxSessionTimeout of the server, or change those two"
        return _zookeeper_check(Verdict.WARNING, name, why, mend)
    return _zookeeper_check(Verdict.OK, name, f"ZooKeeper {version}, sessions of {outcome.session_ms} ms")


def zookeeper_root_checks(root: RootCheckup, config: ZookeeperSection) -> list[Check]:
    checks = []
    if not root.there:
        names = ", ".join(root.siblings[:_MANY_NAMES]) + (", ..." if len(root.siblings) > _MANY_NAMES else "")
        beside = f"; nodes next to it: {names}" if names else ""
        why = f"the node does not exist: a host would begin an empty cluster{beside}"
        mend = f"correct zookeeper.root, or, for a new cluster, add a shard with `foqs shards add`; {_LOST}"
        checks.append(_zookeeper_check(Verdict.WARNING, config.root, why, mend))
    if root.denied:
        why = f"the credential has no right to {', '.join(_few(root.denied))}"
        mend = "correct zookeeper.auth_credential, or grant it the rights (setAcl by the creator of the nodes)"
        checks.append(_zookeeper_check(Verdict.WRONG, config.root, why, mend))
    mend = "the record was edited by hand: write it again"
    checks += [_zookeeper_check(Verdict.WRONG, config.root, words, mend) for words in _few(root.unreadable)]
    if root.there and not root.denied and not root.unreadable:
        checks.append(_content(root.shards, root.hosts, config.root))
    return checks


def lost_data_checks(root: RootCheckup, config: ZookeeperSection, here: host.Running | None) -> list[Check]:
    """Compare the records with what a host on this machine remembers."""
    if here is not None and here.held == "foreign":
        why = "the host on this machine belongs to another cluster than ZooKeeper has there"
        mend = "put the right data back into ZooKeeper, or correct zookeeper.root; or restart the host to join this one"
        return [_zookeeper_check(Verdict.WRONG, config.root, why, mend)]
    wait = "wait: `foqs cluster status` shows the end; `zookeeper.written_back` in the log has the numbers"
    if root.identity.open:
        why = "ZooKeeper lost data, and the hosts write back what they know"
        return [_zookeeper_check(Verdict.WRONG, config.root, why, wait)]
    if here is None:
        return []
    if here.shards and not root.shards:
        why = f"ZooKeeper lost its data: the host on this machine knows {counted(here.shards, 'shard')}"
        mend = "wait: hosts that run write it back within three session time-outs. Do not restart them"
        return [_zookeeper_check(Verdict.WRONG, config.root, why, mend)]
    if here.session not in ("", "connected"):
        why = f"ZooKeeper answers, and the host on this machine has no session ({here.session})"
        mend = (
            f"wait {2 * config.session_timeout_ms / 1000:g} s: the host begins a new session if ZooKeeper lost data "
            "and refuses the old one. If it stays, look at the network of the host and at ZooKeeper's log"
        )
        return [_zookeeper_check(Verdict.WARNING, config.root, why, mend)]
    return []


def _content(shards: Sequence[ShardFact], hosts: Sequence[HostFact], root: str) -> Check:
    living = counted(len(hosts), "host")
    if not shards:
        why = f"the cluster has no shards ({living})"
        mend = f"add a shard with `foqs shards add`, or correct zookeeper.root; {_LOST}"
        # Hosts that run without a shard store nothing: a new cluster has shards first, or ZooKeeper lost them.
        return _zookeeper_check(Verdict.WRONG if hosts else Verdict.WARNING, root, why, mend)
    names = f": {', '.join(_few(sorted(host.id for host in hosts)))}" if hosts else ""
    return _zookeeper_check(Verdict.OK, root, f"shards {numbers(shard.id for shard in shards)}; {living}{names}")


def password_checks(urls: Mapping[int, str]) -> list[Check]:
    """Return a warning if URLs in ZooKeeper have passwords."""
    shards = [shard for shard, url in urls.items() if has_password(url)]
    if not shards:
        return []
    why = f"the URL of shard{'s' if len(shards) > 1 else ''} {numbers(shards)} in ZooKeeper has the password"
    return [_zookeeper_check(Verdict.WARNING, "passwords", why, PASSWORD_REMEDY)]


def _few(words: Sequence[str]) -> list[str]:
    more = [f"and {len(words) - _MANY_NAMES} more"] if len(words) > _MANY_NAMES else []
    return [*words[:_MANY_NAMES], *more]


# ------------------------------------------------------------------------------------------------ databases


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requirements of the configuration on a database server."""

    item_bytes: int
    clock_jump_ms: int


def wanted_of(config: Config) -> Wanted:
    limits = config.limits
    return Wanted(limits.payload_bytes + limits.metadata_bytes + limits.headers_bytes, config.host.clock_jump_ms)


_LATE = "the database does not answer in time"


async def examine_databases(urls: Mapping[int, str], wanted: Wanted, timeout_s: float) -> list[Check]:
    """Check the databases; `urls` are by number of the shard."""
    servers: dict[str, list[int]] = defaultdict(list)
    for shard in sorted(urls):
        servers[_server(urls[shard])].append(shard)
    asked = [_ask_databases({n: urls[n] for n in shards}, timeout_s) for shards in servers.values()]
    checks: list[Check] = []
    for name, outcomes in zip(servers, await asyncio.gather(*asked), strict=True):
        checks += database_checks(name, outcomes, wanted)
    return checks


def _server(url: str) -> str:
    place = place_of(url)
    if place is None:
        return "no url"
    server, _ = place
    return "sqlite files" if server.startswith("sqlite") else server.replace("+pymysql", "").replace("+mysqldb", "")


async def _ask_databases(urls: Mapping[int, str], timeout_s: float) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = dict.fromkeys(urls)
    for shard, url in urls.items():
        look = partial(check_up, url, shard, timeout_s=timeout_s, now_ms=lambda: time.time() * 1000)
        try:
            outcomes[shard] = await apart(look, _PER_SHARD * timeout_s)
        except TimeoutError:
            outcomes[shard] = _LATE
        except StoreError as error:
            outcomes[shard] = str(error)
        if isinstance(outcomes[shard], str) and not url.startswith("sqlite"):
            return outcomes
    return outcomes


def database_checks(server: str, outcomes: Mapping[int, Outcome], wanted: Wanted) -> list[Check]:
    """Return a check for the server, and one for each fault with the shards that have it."""
    looked = {shard: one for shard, one in outcomes.items() if isinstance(one, Checkup)}
    checks = []
    if any(one.server for one in looked.values()):
        checks.append(_database_check(Verdict.OK, server, _summary(looked)))
    silent: dict[str, list[int]] = defaultdict(list)
    for shard, outcome in outcomes.items():
        if isinstance(outcome, str):
            silent[outcome].append(shard)
    for why, which in silent.items():
        mend = "start the server, open the network to it, or correct the shard's url"
        if why == _LATE:
            mend += "; if it is slow: look at its locks, disk and load, and at foqs status (--timeout waits longer)"
        checks.append(_database_check(Verdict.WRONG, server, f"{_shard_names(which)}: {why}", mend))
    findings: dict[Finding, list[int]] = defaultdict(list)
    for shard, one in looked.items():
        for finding in dict.fromkeys(one.findings):
            findings[finding].append(shard)
    for finding, which in findings.items():
        where = "" if checks and len(which) == len(outcomes) else f"{_shard_names(which)}: "
        checks.append(_stated(server, finding, where))
    checks += [_stated(server, finding) for finding in _server_findings(list(looked.values()), wanted)]
    if left := [shard for shard, outcome in outcomes.items() if outcome is None]:
        why = f"{_shard_names(left)}: the server did not answer for an earlier shard"
        checks.append(_database_check(Verdict.SKIPPED, server, why))
    return checks


def _server_findings(looked: Sequence[Checkup], wanted: Wanted) -> list[Finding]:
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
        needed = f"{counted(len(looked), 'open shard', 'needs', 'need')} {2 * len(looked)}"
        why = f"max_connections is {min(connections)}, but {needed}"
        mend = "raise it with SET GLOBAL max_connections, and in the server's configuration"
        found.append(Finding(why, mend, wrong=False))
    return found


def _summary(looked: Mapping[int, Checkup]) -> str:
    parts = [", ".join(dict.fromkeys(one.server for one in looked.values() if one.server)), _shard_names(looked)]
    clocks = [one.clock_ms for one in looked.values() if one.clock_ms is not None]
    if clocks:
        parts.append(f"clock {max(low for low, _ in clocks):+} to {min(high for _, high in clocks):+} ms")
    owners: dict[str, list[int]] = defaultdict(list)
    for shard, one in looked.items():
        if one.owner is not None:
            owners[one.owner or "none"].append(shard)
    if 0 < len(looked) <= _FEW:
        known = {shard: one for shard, one in looked.items() if one.epoch is not None}
        listed = [f"{shard}: {one.owner or 'none'} (epoch {one.epoch})" for shard, one in known.items()]
    else:
        listed = [f"{numbers(which)}: {owner}" for owner, which in owners.items()]
    return "; ".join([*parts, f"owners: {', '.join(listed)}"] if listed else parts)


def _stated(server: str, finding: Finding, where: str = "") -> Check:
    verdict = Verdict.WRONG if finding.wrong else Verdict.WARNING
    return _database_check(verdict, server, where + finding.found, finding.mend)


def _shard_names(which: Iterable[int]) -> str:
    found = list(which)
    return f"shard{'s' if len(found) > 1 else ''} {numbers(found)}"
