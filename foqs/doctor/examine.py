"""All checks, in parallel where they do not build on each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from foqs.config import Config
from foqs.doctor import configuration, databases, ports, tls, zookeeper
from foqs.doctor.check import Check, Group, Verdict


async def examine(path: Path, workers: Sequence[int], timeout_s: float) -> list[Check]:
    """Of the configuration at `path`. `workers`: how far above the configured ports those of workers are;
    `timeout_s` bounds each wait for somebody."""
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
    """In a cluster ZooKeeper says which there are."""
    checks: list[Check] = []
    urls: Mapping[int, str] = {section.id: section.url for section in config.shards}
    if config.zookeeper is not None:
        checks, root = await zookeeper.examine(config.zookeeper, timeout_s)
        if root is None:
            why = "the shards are in ZooKeeper, which could not be read"
            return [*checks, Check(Group.DATABASES, "all", Verdict.SKIPPED, why)]
        urls = {shard.id: shard.url for shard in root.shards}
    return checks + await databases.examine(urls, databases.wanted_of(config), timeout_s)
