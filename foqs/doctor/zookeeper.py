"""Checks ZooKeeper: each server by itself, then the nodes below the root, and this host's rights there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from foqs.config.schema import ZookeeperSection
from foqs.doctor.check import Check, Group, Verdict, apart, numbers, said
from foqs.errors import FoqsError
from foqs.shardmgr.facts import HostFact, ShardFact
from foqs.zk.inspect import RootCheckup, ServerCheckup, check_root, check_server

OLDEST = (3, 5)
"""The oldest version with the same client protocol as the tested ones."""
_MANY_NAMES = 5
_START = "start the server, open the network to it, or correct zookeeper.hosts"


async def examine(config: ZookeeperSection, timeout_s: float) -> tuple[list[Check], RootCheckup | None]:
    """Check ZooKeeper. Return None in place of the root if it could not be read."""
    names = config.hosts.split(",")
    outcomes = await asyncio.gather(*(_ask(name, config, timeout_s) for name in names))
    checks = [of_server(name, outcome, config) for name, outcome in zip(names, outcomes, strict=True)]
    alive = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, ServerCheckup)]
    if not alive:
        return [*checks, _check(Verdict.SKIPPED, config.root, "no server answers")], None
    # kazoo waits for a server that hangs before it tries the next one.
    reachable = config.model_copy(update={"hosts": ",".join(alive)})
    try:
        root = await apart(partial(check_root, reachable, timeout_s), 3 * timeout_s)
    except TimeoutError:
        mend = "look at ZooKeeper's log" + (
            ", and check that it has SASL set up" if config.auth_scheme == "sasl" else ""
        )
        return [*checks, _check(Verdict.WRONG, config.root, "no answer in time", mend)], None
    except FoqsError as error:
        mend = "correct zookeeper.auth_scheme and zookeeper.auth_credential, or look at ZooKeeper's log"
        return [*checks, _check(Verdict.WRONG, config.root, error.message, mend)], None
    return [*checks, *of_root(root, config)], root


async def _ask(name: str, config: ZookeeperSection, timeout_s: float) -> ServerCheckup | str:
    host, _, port = name.rpartition(":")
    work = partial(check_server, config, host.strip("[]"), int(port), timeout_s)
    try:
        return await apart(work, 3 * timeout_s)
    except OSError as error:  # a TimeoutError is one
        return said(error)
    except FoqsError as error:
        return error.message


def of_server(name: str, outcome: ServerCheckup | str, config: ZookeeperSection) -> Check:
    if isinstance(outcome, str):
        return _check(Verdict.WRONG, name, outcome, _START)
    found = [int(part) for part in outcome.version.split(".")[:2] if part.isdigit()]
    version = outcome.version or "of unknown version"
    if len(found) == len(OLDEST) and tuple(found) < OLDEST:
        return _check(
            Verdict.WRONG, name, f"ZooKeeper {version} is too old", f"upgrade it to {_dotted(OLDEST)} or newer"
        )
    if outcome.session_ms != config.session_timeout_ms:
        asked = config.session_timeout_ms
        why = f"the server grants sessions of {outcome.session_ms} ms, but zookeeper.session_timeout_ms is {asked}"
        mend = "set it between minSessionTimeout and maxSessionTimeout of the server, or change those two"
        return _check(Verdict.WARNING, name, why, mend)
    return _check(Verdict.OK, name, f"ZooKeeper {version}, sessions of {outcome.session_ms} ms")


def of_root(root: RootCheckup, config: ZookeeperSection) -> list[Check]:
    checks = []
    if not root.there:
        names = ", ".join(root.beside[:_MANY_NAMES]) + (", ..." if len(root.beside) > _MANY_NAMES else "")
        why = "the node does not exist: a host would begin an empty cluster" + (
            f"; nodes beside it: {names}" if names else ""
        )
        checks.append(
            _check(
                Verdict.WARNING,
                config.root,
                why,
                "correct zookeeper.root, or, for a new cluster, add a shard with `foqs shards add`",
            )
        )
    if root.denied:
        mend = "correct zookeeper.auth_credential, or grant it the rights (setAcl by the creator of the nodes)"
        checks.append(
            _check(Verdict.WRONG, config.root, f"the credential has no right to {', '.join(_few(root.denied))}", mend)
        )
    mend = "the record was edited by hand: write it again"
    checks += [_check(Verdict.WRONG, config.root, words, mend) for words in _few(root.unreadable)]
    if root.there and not root.denied and not root.unreadable:
        checks.append(_content(root.shards, root.hosts, config.root))
    return checks


def _content(shards: Sequence[ShardFact], hosts: Sequence[HostFact], root: str) -> Check:
    living = f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}"
    if not shards:
        why = f"the cluster has no shards ({living})"
        return _check(Verdict.WARNING, root, why, "add a shard with `foqs shards add`, or correct zookeeper.root")
    names = f": {', '.join(_few(sorted(host.id for host in hosts)))}" if hosts else ""
    return _check(Verdict.OK, root, f"shards {numbers(shard.id for shard in shards)}; {living}{names}")


def _few(words: Sequence[str]) -> list[str]:
    more = [f"and {len(words) - _MANY_NAMES} more"] if len(words) > _MANY_NAMES else []
    return [*words[:_MANY_NAMES], *more]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _check(verdict: Verdict, name: str, found: str, mend: str = "") -> Check:
    return Check(Group.ZOOKEEPER, name, verdict, found, mend)
