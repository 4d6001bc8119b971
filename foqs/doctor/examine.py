"""All checks; independent ones run in parallel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from foqs.config.load import Config
from foqs.doctor import configuration, databases, ports, tls, zookeeper
from foqs.doctor.check import Check, Group, Verdict


async def examine(path: Path, workers: Sequence[int], timeout_s: float) -> list[Check]:
    """Check the configuration at `path` and all that it names.

    `workers` are the distances of the workers' ports above the configured ones. `timeout_s` bounds each wait.
    """
    config, checks = configuration.read(path)
    if config is None:
        why = "the configuration is not valid"
        groups = [group for group in Group if group is not Group.CONFIGURATION]
        return checks + [Check(group, "all", Verdict.SKIPPED, why) for group in groups]
    checks += configuration.dangers(config, configuration.this_machine(), max(1, len(workers)))
    checks += tls.examine(config, ports.advertised(config), time.time())
    found = await asyncio.gather(ports.examine(config, workers, timeout_s), _shards(config, timeout_s))
    return [check for part in (checks, *found) for check in part]


async def _shards(config: Config, timeout_s: float) -> list[Check]:
    """Check ZooKeeper, which lists the shards of a cluster, and the databases."""
    checks: list[Check] = []
    urls: Mapping[int, str] = {section.id: section.url for section in config.shards}
    if config.zookeeper is not None:
        checks, root = await zookeeper.examine(config.zookeeper, timeout_s)
        if root is None:
            why = "the list of shards is in ZooKeeper, which could not be read"
            return [*checks, Check(Group.DATABASES, "all", Verdict.SKIPPED, why)]
        urls = {shard.id: shard.url for shard in root.shards}
    return checks + await databases.examine(urls, databases.wanted_of(config), timeout_s)
