"""`foqs shards`: the shards of foqs.toml, or those of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foqs.cli.errors import fail, told
from foqs.cli.operators import (
    CONNECT_S,
    TIMEOUT_S,
    ConfigOption,
    ConnectOption,
    NoWaitOption,
    TimeoutOption,
    YesOption,
    cluster_of,
    confirm,
    look,
    perform,
    show_moves,
)
from foqs.errors import Invalid
from foqs.shardmgr import operate
from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.store.protocol import StoreError, explained

ShardArgument = Annotated[int, typer.Argument(metavar="ID", help="The shard's number.")]

app = typer.Typer(help="Make, verify and move shards.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="shards")


@app.command("create")
@told
def create(config: ConfigOption, connect_timeout: ConnectOption = CONNECT_S) -> None:
    """Makes the tables of every shard of foqs.toml or the cluster; those that are there already stay as they are."""
    from foqs.store.schema import create_schema

    for shard, url in _urls(config, connect_timeout):
        try:
            create_schema(url, shard)
        except StoreError as error:
            fail(f"shard {shard}: {explained(error)}")
        print(f"shard {shard}: ready")


@app.command("check")
@told
def check(config: ConfigOption, connect_timeout: ConnectOption = CONNECT_S) -> None:
    """Verifies tables, indexes, version, number and the settings that the promises rest on.

    Exits 1 when something is wrong, and says how to mend it.
    """
    wrong = False
    for shard, url in _urls(config, connect_timeout):
        findings = _findings(url, shard)
        wrong = wrong or bool(findings)
        for finding in findings or ["good"]:
            print(f"shard {shard}: {finding}")
    if wrong:
        sys.exit(1)


def _urls(path: Path, connect_s: float) -> list[tuple[int, str]]:
    """Raises Invalid when there are none."""
    from foqs.config import load

    config = load(path)
    if config.zookeeper is not None:
        shards = look(config.zookeeper, connect_s).shards
        if not shards:
            raise Invalid("the cluster has no shards: `foqs shards add` adds one")
        return [(shard, shards[shard].url) for shard in sorted(shards)]
    if not config.shards:
        raise Invalid("no [[shards]] in the configuration")
    return [(section.id, section.url) for section in config.shards]


def _findings(url: str, shard: int) -> list[str]:
    """What is wrong, each with what mends it."""
    from foqs.store.schema import check_schema

    try:
        return [f"{one.found} -> {one.mend}" if one.mend else one.found for one in check_schema(url, shard)]
    except StoreError as error:
        return [str(error)]


# ------------------------------------------------------------------------------------- shards of a cluster


@app.command("add")
@told
def add(
    shard: ShardArgument,
    url: Annotated[str, typer.Argument(help="SQLAlchemy URL; - reads it from stdin, where no `ps` shows it.")],
    config: ConfigOption,
    weight: Annotated[float, typer.Option(help="Its part of the load, relative to the others.")] = 1.0,
    create: Annotated[bool, typer.Option("--create", help="Make the database's schema first.")] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Adds a shard to the cluster, once its database was found good; waits until a host serves it."""
    if url == "-":
        url = sys.stdin.readline().strip()
    if not url:
        raise Invalid("the URL is empty")
    perform(
        config,
        lambda facts: operate.add_shard(facts, ShardFact(shard, url, weight)),
        connect_s=connect_timeout,
        timeout_s=timeout,
        wait=not no_wait,
        first=lambda: refuse_bad(url, shard, create=create),
    )


def refuse_bad(url: str, shard: int, *, create: bool) -> None:
    """Raises Invalid, and StoreError when the schema cannot be made."""
    if create:
        from foqs.store.schema import create_schema

        create_schema(url, shard)
    if findings := _findings(url, shard):
        hint = "" if create else " (--create makes a schema that is missing)"
        raise Invalid(f"shard {shard} is not added: {'; '.join(findings)}{hint}")


@app.command("enable")
@told
def enable(
    shard: ShardArgument,
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Has a shard served, with new items; waits until a host serves it."""
    _use(shard, ShardUse.ENABLED, config, connect_timeout, timeout, wait=not no_wait)


@app.command("drain")
@told
def drain(
    shard: ShardArgument,
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Marks a shard: no new items, served until it is empty. `foqs shards enable` takes it back."""
    _use(shard, ShardUse.DRAINING, config, connect_timeout, timeout, wait=not no_wait)


@app.command("disable")
@told
def disable(
    shard: ShardArgument,
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Has a shard served by nobody: its items wait in the database. Waits until nobody does."""
    _use(shard, ShardUse.DISABLED, config, connect_timeout, timeout, wait=not no_wait)


@app.command("remove")
@told
def remove(
    shard: ShardArgument,
    config: ConfigOption,
    items: Annotated[int, typer.Option(min=0, help="How many items the shard holds: it has to be right.")] = 0,
    uncounted: Annotated[bool, typer.Option("--uncounted", help="Do not count: its database is gone.")] = False,
    yes: YesOption = False,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Takes a disabled shard out of the cluster. Its items stay in the database, and no host serves them: a shard that
    holds items is removed only when --items says how many."""
    from foqs.config import load

    def first() -> None:
        if not uncounted:
            facts = look(cluster_of(load(config)), connect_timeout)
            refuse_items(facts.shards[shard].url, shard, items)
        confirm(f"Remove shard {shard}?", yes=yes)

    perform(
        config,
        lambda facts: operate.remove_shard(facts, shard),
        connect_s=connect_timeout,
        timeout_s=TIMEOUT_S,
        first=first,
    )


def refuse_items(url: str, shard: int, expected: int) -> None:
    """Raises Invalid unless the shard's database holds just so many items."""
    from foqs.store.count import count_items

    try:
        found = count_items(url, shard)
    except StoreError as error:
        raise Invalid(
            f"the items of shard {shard} cannot be counted: {error}. Once its database answers, try again; to give up "
            "the items, give --uncounted"
        ) from None
    if found == expected:
        return
    holds = f"shard {shard} holds {found:,} item{'' if found == 1 else 's'}"
    if expected:
        raise Invalid(f"{holds}, not {expected:,}: nothing is removed")
    raise Invalid(
        f"{holds}, which no host will serve: drain the shard first (foqs shards enable {shard}, then drain), or give "
        f"--items {found} to leave them in the database"
    )


@app.command("move")
@told
def move(
    shard: ShardArgument,
    to: Annotated[str, typer.Option("--to", metavar="HOST", help="The id of a living host.")],
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Moves a shard to another host; waits until that one serves it. A later balancing may move it again."""
    perform(
        config,
        lambda facts: operate.move_shard(facts, shard, to),
        connect_s=connect_timeout,
        timeout_s=timeout,
        wait=not no_wait,
    )


@app.command("rebalance")
@told
def rebalance(
    config: ConfigOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and make none.")] = False,
    max_moves: Annotated[int | None, typer.Option(min=1, help="At most so many. Default: all it takes.")] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Evens out the hosts by the weights of their shards, at once; waits until every shard has arrived."""
    if dry_run:
        from foqs.config import load

        change = operate.rebalance(look(cluster_of(load(config)), connect_timeout), max_moves)
        print(f"{change.says} (nothing is changed: --dry-run)")
        show_moves(change)
        return
    perform(
        config,
        lambda facts: operate.rebalance(facts, max_moves),
        connect_s=connect_timeout,
        timeout_s=timeout,
        wait=not no_wait,
    )


def _use(shard: int, use: ShardUse, config: Path, connect_s: float, timeout_s: float, *, wait: bool) -> None:
    perform(
        config, lambda facts: operate.use_shard(facts, shard, use), connect_s=connect_s, timeout_s=timeout_s, wait=wait
    )
