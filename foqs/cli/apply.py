"""`foqs shards apply` and `await`: the shards of a cluster as a file has them, to install and to update one."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.errors import fail, told
from foqs.cli.operators import (
    CONNECT_S,
    TIMEOUT_S,
    ConfigOption,
    ConnectOption,
    TimeoutOption,
    audit,
    cluster_of,
    look,
    quietly,
)
from foqs.cli.shards import app, refuse_bad
from foqs.errors import FoqsError, Unavailable
from foqs.shardmgr import operate
from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.sections import ZookeeperSection

_LOOK_S = 0.5
_AT_ONCE = 16


def register(_parent: typer.Typer) -> None:
    app.command("apply")(apply)
    app.command("await")(await_)


@told
def apply(
    file: Annotated[Path, typer.Argument(help="TOML with [[shards]]: id, url, and weight if it is not 1.")],
    config: ConfigOption,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Makes the schemas of the shards in FILE and adds those to the cluster that it does not have. It removes nothing,
    changes no shard that is there, and may be repeated; a shard that fails does not keep the others from being made."""
    from foqs.cli.shards_file import read
    from foqs.config import load

    wanted = read(file)
    cluster = cluster_of(load(config))
    facts = look(cluster, connect_timeout)
    for fact in wanted:
        operate.ensure_shard(facts, fact)
    wrong = [why for fact in wanted if (why := _ensure(cluster, fact, connect_timeout)) is not None]
    if wrong:
        fail("; ".join(wrong))


@told
def await_(
    config: ConfigOption,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Waits until the cluster has shards, and their tables are those that this version needs. A database that does not
    answer is not waited for: hosts do without it, too."""
    from foqs.config import load

    cluster = cluster_of(load(config))
    deadline, said = time.monotonic() + timeout, ""
    while missing := _missing(cluster, connect_timeout):
        if time.monotonic() > deadline:
            raise Unavailable(f"not there within {timeout:g} s: {missing}")
        if missing != said:
            print(f"waiting: {missing}", file=sys.stderr, flush=True)
            said = missing
        time.sleep(_LOOK_S)
    print("the cluster has its shards")


def _ensure(section: ZookeeperSection, fact: ShardFact, connect_s: float) -> str | None:
    """Why it could not be done."""
    from foqs.cli.cluster import Cluster

    async def add() -> operate.Change:
        async with Cluster(section, connect_s) as cluster:
            return await cluster.carry_out(lambda facts: operate.ensure_shard(facts, fact), audit)

    try:
        refuse_bad(fact.url, fact.id, create=True)
        quietly()
        change = asyncio.run(add())
    except FoqsError as error:
        return f"shard {fact.id}: {error}"
    except StoreError as error:
        return f"shard {fact.id}: {explained(error)}"
    print(f"shard {fact.id} is added" if change.action is not None else change.says, flush=True)
    return None


def _missing(section: ZookeeperSection, connect_s: float) -> str:
    """Empty when nothing is."""
    try:
        shards = look(section, connect_s).shards.values()
    except Unavailable as error:
        return error.message
    if not shards:
        return "the cluster has no shards"
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(_lacks, (shard for shard in shards if shard.use is not ShardUse.DISABLED))
        return next(filter(None, found), "")


def _lacks(shard: ShardFact) -> str:
    from foqs.store.schema import check_tables

    try:
        wrong = check_tables(shard.url)
    except StoreError:
        return ""
    return f"shard {shard.id}: {wrong[0]}" if wrong else ""
