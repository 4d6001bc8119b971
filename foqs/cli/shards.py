"""`foqs shards`: make, check and move the shards of foqs.toml or of a cluster.

`foqs shards apply` and `await`: install the shards of a cluster from a file, and wait for them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.help import OPERATE, command, commands
from foqs.cli.look import JsonOption
from foqs.cli.operators import (
    MOST_S,
    TIMEOUT_S,
    ClusterOptions,
    WaitOptions,
    YesOption,
    audit,
    cluster_of,
    confirm,
    look,
    perform,
    quietly,
    show_moves,
)
from foqs.cli.terminal import fail, piped
from foqs.errors import FoqsError, Invalid, Unavailable
from foqs.ids import MAX_SHARD
from foqs.shardmgr import operate
from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.shardmgr.operate import Change
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.config.schema import ZookeeperSection


ShardArgument = Annotated[int, typer.Argument(metavar="ID", min=1, max=MAX_SHARD, help="The shard has this number.")]

DATABASES, MEMBERS, PLACES = "Databases", "Shards of a cluster", "Hosts of the shards"

app = commands(
    "shards",
    "List, make, check and move shards.",
    "foqs shards check --config foqs.toml",
    "foqs shards move 3 --to host-2:7707 --config foqs.toml",
)


def register_first(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(app, "foqs shards create --config foqs.toml", group=DATABASES)
def create(cluster: ClusterOptions) -> None:
    """Create the tables of every shard of foqs.toml or of the cluster.

    Tables that exist stay unchanged.
    """
    from foqs.store.maintenance import create_schema

    for shard, url in shard_urls(cluster):
        try:
            create_schema(url, shard)
        except StoreError as error:
            fail(f"shard {shard}: {explained(error)}")
        print(f"shard {shard}: ready")


@command(app, "foqs shards migrate --config foqs.toml --dry-run", group=DATABASES)
def migrate(
    cluster: ClusterOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The command prints the SQL statements and runs none.")
    ] = False,
) -> None:
    """Bring the database of each shard to the schema of this foqs.

    A host serves only shards with the schema of its foqs, so stop the hosts before. The command refuses a shard that a
    host serves. It continues after a shard that fails, and then exits with 1. Run it again to complete such a shard.
    """
    failed = False
    for shard, url in shard_urls(cluster):
        try:
            print(f"shard {shard}: {_planned(url, shard) if dry_run else _migrated(url, shard)}")
        except StoreError as error:
            failed = True
            print(f"foqs: shard {shard}: {explained(error)}", file=sys.stderr)
    if failed:
        sys.exit(1)


def _migrated(url: str, shard: int) -> str:
    from foqs.store.maintenance import migrate_schema
    from foqs.store.tables import SCHEMA_VERSION

    before = migrate_schema(url, shard)
    if before < SCHEMA_VERSION:
        return f"migrated from schema version {before} to {SCHEMA_VERSION}"
    return f"schema version {before}, nothing to do"


def _planned(url: str, shard: int) -> str:
    from foqs.store.maintenance import plan_migration
    from foqs.store.tables import SCHEMA_VERSION

    plan = plan_migration(url, shard)
    if not plan.statements:
        return f"schema version {plan.version}, nothing to do"
    heading = f"schema version {plan.version}; to make it version {SCHEMA_VERSION}:"
    return "\n    ".join([heading, *(f"{statement};" for statement in plan.statements)])


@command(app, "foqs shards list --config foqs.toml", name="list", group=DATABASES)
@piped
def list_(cluster: ClusterOptions, as_json: JsonOption = False) -> None:
    """List the shards of foqs.toml or of the cluster: a table on a terminal, else JSON lines.

    The command does not ask the databases: `foqs shards check` does.
    """
    from foqs.cli.cluster import ask_cluster, document, shards_table
    from foqs.cli.terminal import plain_table, show, write_line
    from foqs.config.load import load
    from foqs.store.link import place_of

    in_table = sys.stdout.isatty() and not as_json
    if load(cluster.config).zookeeper is not None:
        facts, answers = ask_cluster(cluster)
        rows, table = document(facts, True, answers)["shards"], shards_table(facts, answers)
    else:
        places = [(shard, place_of(url)) for shard, url in shard_urls(cluster)]
        rows = [{"id": shard, "database": None if place is None else "/".join(place)} for shard, place in places]
        table = plain_table("shard", "database", numbers=("shard",), folded=("database",))
        for row in rows:
            table.add_row(str(row["id"]), row["database"] or "-")
    if in_table:
        show(table)
        return
    for row in rows:
        write_line(row)


@command(
    app,
    "foqs shards check --config foqs.toml",
    "foqs shards check --rows --config foqs.toml",
    group=DATABASES,
)
def check(
    cluster: ClusterOptions,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows",
            help="The command also reads each row, and finds items without their rows in ready, timer, expiry or lane, "
            "and such rows without their item.",
        ),
    ] = False,
) -> None:
    """Check the database of every shard, and find what keeps a host from opening it.

    The command compares tables, indexes, version, number and settings, asks for the rights of the account, and reads
    what a host reads when it opens the shard. It changes nothing, and hosts may serve the shards at the same time.
    For each fault the command prints the remedy. It exits with 1 if it finds a fault.
    """
    from foqs.cli.shard_checks import conflict_of, examine

    urls = shard_urls(cluster)
    wrong, copies = False, {}
    for shard, found in examine(urls, rows=rows):
        wrong = wrong or bool(found.findings)
        for finding in found.findings or ["good"]:
            print(f"shard {shard}: {finding}")
        if found.restored:
            print(f"shard {shard}: {found.restored}")
        copies[shard] = found.settings
    if conflict := conflict_of(copies):
        wrong = True
        print(conflict)
    if wrong:
        sys.exit(1)


@command(app, "foqs shards renew 3 --config copy.toml", group=DATABASES)
def renew(shard: ShardArgument, cluster: ClusterOptions, yes: YesOption = False) -> None:
    """Give a copy of a shard an identity of its own.

    A host refuses a copy while its original is served. Renew a copy that you want to serve in addition, not a backup
    that takes the place of its original: with another identity, hosts do not notice that it is older. No host may
    serve the copy.
    """
    from foqs.store.maintenance import renew_identity

    url = dict(shard_urls(cluster)).get(shard)
    if url is None:
        raise Invalid(f"the configuration or its cluster has no shard {shard}: give the number of a shard that it has")
    confirm(f"Give the database of shard {shard} a new identity?", yes=yes)
    try:
        identity = renew_identity(url, shard)
    except StoreError as error:
        fail(f"shard {shard}: {explained(error)}")
    print(f"shard {shard}: its identity is {identity} now")


def shard_urls(cluster: ClusterOptions) -> list[tuple[int, str]]:
    """Return number and URL of each shard. Raises Invalid if there is none."""
    from foqs.config.load import load

    config = load(cluster.config)
    if config.zookeeper is not None:
        shards = look(config.zookeeper, cluster.connect_timeout).shards
        if not shards:
            raise Invalid("the cluster has no shards: add one with `foqs shards add`")
        return [(shard, shards[shard].url) for shard in sorted(shards)]
    if not config.shards:
        raise Invalid("the configuration has neither [[shards]] nor [zookeeper]: add one of them")
    return [(section.id, section.url) for section in config.shards]


# ------------------------------------------------------------------------------------- shards of a cluster


@command(
    app,
    "foqs shards add 3 mysql+pymysql://foqs:secret@db-1/foqs_3 -c foqs.toml",
    "foqs shards add 3 - --create -c foqs.toml < url.txt",
    group=MEMBERS,
)
def add(
    shard: ShardArgument,
    url: Annotated[
        str,
        typer.Argument(help="The database has this SQLAlchemy URL. - reads it from stdin, which hides it from `ps`."),
    ],
    cluster: ClusterOptions,
    weight: Annotated[
        float,
        typer.Option(
            min=0, max=1e6, help="The share of the load grows with this number, which is above 0; most shards have 1."
        ),
    ] = 1.0,
    create: Annotated[bool, typer.Option("--create", help="The command creates the tables first.")] = False,
    discard_settings: Annotated[
        bool,
        typer.Option(
            "--discard-settings",
            help="The command removes the settings that the shard's database keeps. Those of the cluster count.",
        ),
    ] = False,
    *,
    wait: WaitOptions,
) -> None:
    """Add a shard to the cluster after checking its database.

    The cluster takes over the settings of namespaces that the shard's database keeps. If those of the cluster
    were made apart, the command adds nothing and names both. The command waits until a host serves the shard.
    """
    from foqs.cli.operators import adopt_kept, remove_copies

    if url == "-":
        url = sys.stdin.readline().removeprefix("\ufeff").strip()
    if not url:
        raise Invalid(
            "the URL of the shard's database is empty: give it as the second argument, or a line on stdin for -"
        )

    def first() -> None:
        refuse_bad(url, shard, create=create)
        if discard_settings:
            remove_copies(url, shard)

    perform(
        cluster,
        lambda facts: operate.add_shard(facts, ShardFact(shard, url, weight)),
        wait,
        first=first,
        then=lambda cluster: adopt_kept(cluster, ShardFact(shard, url)),
    )


def refuse_bad(url: str, shard: int, *, create: bool) -> None:
    """Raise Invalid unless the database suits the shard; with `create`, StoreError if its schema cannot be created."""
    if create:
        from foqs.store.maintenance import create_schema

        create_schema(url, shard)
    from foqs.cli.shard_checks import examined

    if findings := examined(url, shard).findings:
        hint = "" if create else " (--create creates missing tables)"
        raise Invalid(f"shard {shard} is not added: {'; '.join(findings)}{hint}")


@command(app, "foqs shards enable 3 --config foqs.toml", group=MEMBERS)
def enable(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Let a shard be served and take new items.

    The command waits until a host serves the shard.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.ENABLED), wait)


@command(app, "foqs shards drain 3 --config foqs.toml", group=MEMBERS)
def drain(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Stop new items for a shard; hosts serve the items that it has.

    `foqs shards enable` undoes it.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.DRAINING), wait)


@command(app, "foqs shards disable 3 --config foqs.toml", group=MEMBERS)
def disable(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Take a shard out of service: its items stay in the database.

    The command waits until no host serves the shard. `foqs shards enable` undoes it.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.DISABLED), wait)


@command(
    app,
    "foqs shards remove 3 --config foqs.toml",
    "foqs shards remove 3 --items 1200 --yes -c foqs.toml",
    group=MEMBERS,
)
def remove(
    shard: ShardArgument,
    cluster: ClusterOptions,
    items: Annotated[
        int, typer.Option(min=0, help="The shard holds exactly this many items; the command checks the number.")
    ] = 0,
    uncounted: Annotated[
        bool, typer.Option("--uncounted", help="The command does not count the items, because the database is gone.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Remove a disabled shard from the cluster.

    Its items stay in the database, and no host serves them. If the shard holds items, --items must give their number.
    """

    def first() -> None:
        if not uncounted:
            refuse_items(cluster.look().shards[shard].url, shard, items)
        confirm(f"Remove shard {shard}?", yes=yes)

    perform(cluster, lambda facts: operate.remove_shard(facts, shard), first=first)


def refuse_items(url: str, shard: int, expected: int) -> None:
    """Raise Invalid unless the shard's database holds exactly `expected` items."""
    from foqs.store.maintenance import count_items

    try:
        found = count_items(url, shard)
    except StoreError as error:
        raise Invalid(
            f"the items of shard {shard} cannot be counted: {error}. Try again when its database answers, or give "
            "--uncounted to give up the items"
        ) from None
    if found == expected:
        return
    holds = f"shard {shard} holds {found:,} item{'' if found == 1 else 's'}"
    if expected:
        raise Invalid(f"{holds}, not {expected:,}: the shard is not removed")
    raise Invalid(
        f"{holds}, and no host would serve them: first drain the shard (foqs shards enable {shard}, then drain), or "
        f"give --items {found} to leave them in the database"
    )


@command(app, "foqs shards move 3 --to host-2:7707 --config foqs.toml", group=PLACES)
def move(
    shard: ShardArgument,
    to: Annotated[str, typer.Option("--to", metavar="HOST", help="The shard moves to the living host with this id.")],
    cluster: ClusterOptions,
    wait: WaitOptions,
) -> None:
    """Move a shard to another host.

    The command waits until that host serves the shard. A later round of balancing may move the shard again.
    """
    perform(cluster, lambda facts: operate.move_shard(facts, shard, to), wait)


@command(
    app,
    "foqs shards rebalance --dry-run --config foqs.toml",
    "foqs shards rebalance --max-moves 5 --config foqs.toml",
    group=PLACES,
)
def rebalance(
    cluster: ClusterOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The command prints the moves and makes none.")] = False,
    max_moves: Annotated[
        int | None,
        typer.Option(min=0, help="The command moves at most this many shards; 0: no limit. Default: no limit."),
    ] = None,
    *,
    wait: WaitOptions,
) -> None:
    """Spread the shards over the hosts by weight, in one step.

    The command waits until the new hosts serve the shards that move.
    """
    if dry_run:
        change = operate.rebalance(cluster.look(), max_moves or None)
        print(f"{change.says} (--dry-run: no change was made)")
        show_moves(change)
        return
    perform(cluster, lambda facts: operate.rebalance(facts, max_moves or None), wait)


_LOOK_S = 0.5
_AT_ONCE = 16


def register_apply(_parent: typer.Typer) -> None:
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
    from foqs.cli.shard_checks import read
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

    from foqs.cli.operators import adopt_kept
    from foqs.cli.session import Cluster

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


def register(parent: typer.Typer) -> None:
    register_first(parent)
    register_apply(parent)
