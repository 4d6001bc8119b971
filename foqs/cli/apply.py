"""`foqs shards apply` and `await`: install the shards of a cluster from a file, and wait for them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.errors import fail
from foqs.cli.help import command
from foqs.cli.operators import MOST_S, TIMEOUT_S, ClusterOptions, audit, cluster_of, look, quietly
from foqs.cli.shards import MEMBERS, app, refuse_bad
from foqs.errors import FoqsError, Unavailable
from foqs.shardmgr import operate
from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.shardmgr.operate import Change
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.config.schema import ZookeeperSection

_LOOK_S = 0.5
_AT_ONCE = 16


def register(_parent: typer.Typer) -> None:
    command(app, "foqs shards apply shards.toml --config foqs.toml", name="apply", group=MEMBERS)(apply)
    command(app, "foqs shards await --timeout 300 --config foqs.toml", name="await", group=MEMBERS)(await_)


def apply(
    file: Annotated[
        Path,
        typer.Argument(
            help="This TOML file has a [\\[shards]] table for each shard: id, url, and weight if it is not 1."
        ),
    ],
    cluster: ClusterOptions,
) -> None:
    """Add the shards of a file to the cluster, and create their tables.

    The command removes nothing and changes no shard that the cluster has; running it again is safe. If a shard fails,
    the command goes on with the next one, and exits with 1 at the end.
    """
    from foqs.cli.shards_file import read
    from foqs.config.load import load

    wanted = read(file)
    section = cluster_of(load(cluster.config))
    facts = look(section, cluster.connect_timeout)
    for fact in wanted:
        operate.ensure_shard(facts, fact)
    wrong = [why for fact in wanted if (why := _ensure(section, fact, cluster.connect_timeout)) is not None]
    if wrong:
        fail("; ".join(wrong))


def await_(
    cluster: ClusterOptions,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, max=MOST_S, help="The command waits this many seconds for the hosts to finish; 0: it looks once."
        ),
    ] = TIMEOUT_S,
) -> None:
    """Wait until the cluster has shards with the tables of this version.

    The command does not wait for a database that does not answer, because hosts start without it.
    """
    from foqs.config.load import load

    section = cluster_of(load(cluster.config))
    deadline, said = time.monotonic() + timeout, ""
    while missing := _missing(section, cluster.connect_timeout):
        if time.monotonic() > deadline:
            raise Unavailable(f"the shards are not complete after {timeout:g} s (--timeout): {missing}")
        if missing != said:
            print(f"waiting: {missing}", file=sys.stderr, flush=True)
            said = missing
        time.sleep(_LOOK_S)
    print("the cluster has its shards")


def _ensure(section: ZookeeperSection, fact: ShardFact, connect_s: float) -> str | None:
    """Add one shard. Return the reason if that failed."""
    import asyncio

    from foqs.cli.cluster import Cluster
    from foqs.cli.kept import adopt_kept

    async def add() -> Change:
        async with Cluster(section, connect_s) as cluster:
            if fact.id not in cluster.facts.shards:
                await adopt_kept(cluster, fact)
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
    """Return the first part that the cluster lacks; empty if it is complete."""
    from concurrent.futures import ThreadPoolExecutor

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
    from foqs.store.maintenance import check_tables

    try:
        wrong = check_tables(shard.url)
    except StoreError:
        return ""
    return f"shard {shard.id}: {wrong[0]}" if wrong else ""
