"""`foqs shards add|...|rebalance`: the shards of a cluster, and the hosts that serve them."""

from __future__ import annotations

import sys
import time
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.checks import counted
from foqs.cli.main import command
from foqs.cli.operators import (
    MOST_S,
    TIMEOUT_S,
    ClusterOptions,
    WaitOptions,
    YesOption,
    audit,
    confirm,
    connected,
    look,
    perform,
    section_of,
    show_moves,
)
from foqs.cli.shard_databases import ShardArgument, app, copies_of, examined, shards
from foqs.cli.shard_dumps import backup, restore
from foqs.cli.shard_url import check_url, given_url, refuse_password
from foqs.cli.terminal import fail
from foqs.errors import Conflict, FoqsError, Invalid, Unavailable
from foqs.shardmgr import operate
from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.config.schema import ZookeeperSection
    from foqs.shardmgr.operate import Change
    from foqs.zk.session import Cluster

__all__ = ["app", "backup", "restore"]  # the group, and commands of other modules
_MEMBERS, _PLACES = "Shards of a cluster", "Hosts of the shards"
UrlArgument = Annotated[
    str, typer.Argument(help="The database has this SQLAlchemy URL. - reads it from stdin, which hides it from `ps`.")
]
_LOOK_S = 0.5
_AT_ONCE = 16


@command(
    shards,
    "foqs shards add 3 mysql+pymysql://foqs:secret@db-1/foqs_3 -c foqs.toml",
    "foqs shards add 3 - --create -c foqs.toml < url.txt",
    group=_MEMBERS,
)
def add(
    shard: ShardArgument,
    url: UrlArgument,
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
            help="The command removes the settings that the shard's database keeps. The settings of the cluster count.",
        ),
    ] = False,
    *,
    wait: WaitOptions,
) -> None:
    """Add a shard to the cluster after checking its database.

    The cluster takes over the settings of namespaces that the shard's database keeps. If the settings of the
    cluster were made apart, the command adds nothing and names both. The command waits until a host serves the shard.
    """
    from foqs.store import maintenance

    url = given_url(url)
    refuse_password(cluster, url)
    place = cluster.placed(url)

    def first() -> None:
        _refuse_bad(place, shard, create=create)
        if discard_settings:
            kept = maintenance.read_kept(place, shard).settings
            maintenance.discard_settings(place, shard, [row.ns.decode() for row in kept])

    perform(
        cluster,
        lambda facts: operate.add_shard(facts, ShardFact(shard, url, weight)),
        wait,
        first=first,
        then=lambda session: _adopt_kept(session, ShardFact(shard, place)),
    )


@command(
    shards,
    "foqs shards set-url 3 'mysql://foqs@db-2/q?password_file=db-2' -c foqs.toml",
    "foqs shards set-url 3 - -c foqs.toml < url.txt",
    group=_MEMBERS,
)
def set_url(
    shard: ShardArgument,
    url: UrlArgument,
    cluster: ClusterOptions,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="The command connects to no database, after a question."),
    ] = False,
    yes: YesOption = False,
    *,
    wait: WaitOptions,
) -> None:
    """Change the address, the account or the password of a shard's database in place.

    The shard keeps its items, ids, deduplication keys and place. The new URL must lead to the same shard: the present
    database, or a copy that took its place. If only the password or the files of TLS differ, the host keeps the shard
    open and uses them for its next connection. Else it opens the shard again, and calls wait for that.
    """
    url = given_url(url)
    refuse_password(cluster, url)

    def first() -> None:
        before = cluster.look().shards[shard]
        if before.url == url:
            return
        if no_check:
            confirm(f"Change the URL of shard {shard} without a look at its database?", yes=yes)
        else:
            check_url(cluster, before, url, yes=yes)

    perform(cluster, lambda facts: operate.set_url(facts, shard, url), wait, first=first)


async def _adopt_kept(cluster: Cluster, fact: ShardFact) -> None:
    """Give the cluster the settings and the deduplication slots that a shard's database keeps, before it is added.

    Raises Conflict for settings that were made apart from the cluster's, Invalid for unreadable ones, StoreError.
    """
    from foqs.shardmgr.routing import claimed
    from foqs.store.maintenance import read_kept

    kept = read_kept(fact.url, fact.id)
    before = cluster.facts.settings
    copies = copies_of(kept)
    try:
        stored = await cluster.adopt(copies, f"shard {fact.id}")
    except Conflict as error:
        raise Conflict(
            f"shard {fact.id} is not added: {error.message}. Put the entries that shall hold into the settings of the "
            f"cluster (`foqs settings export` on both sides, `foqs settings import` here), and run `foqs shards add "
            f"{fact.id} ... --discard-settings`"
        ) from None
    for copy, found in zip(copies, stored, strict=True):
        if copy.ns not in before or before[copy.ns].version < found.version == copy.version:
            print(f"the cluster takes over the settings of namespace {copy.ns} (version {copy.version})", flush=True)
    stamp, bits = kept.slots
    await cluster.share_slots(lambda facts: claimed(facts, fact.id, stamp, bits, time.time_ns() // 1_000_000))


def _refuse_bad(url: str, shard: int, *, create: bool) -> None:
    """Raise Invalid unless the database suits the shard; with `create`, StoreError if its schema cannot be created."""
    if create:
        from foqs.store.maintenance import create_schema

        create_schema(url, shard)
    if findings := examined(url, shard).findings:
        hint = "" if create else " (--create creates missing tables)"
        raise Invalid(f"shard {shard} is not added: {'; '.join(findings)}{hint}")


@command(shards, "foqs shards enable 3 --config foqs.toml", group=_MEMBERS)
def enable(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Let a shard be served and take new items.

    The command waits until a host serves the shard.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.ENABLED), wait)


@command(shards, "foqs shards drain 3 --config foqs.toml", group=_MEMBERS)
def drain(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Stop new items for a shard; hosts serve the items that it has.

    `foqs shards enable` undoes it.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.DRAINING), wait)


@command(shards, "foqs shards disable 3 --config foqs.toml", group=_MEMBERS)
def disable(shard: ShardArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Take a shard out of service: its items stay in the database.

    The command waits until no host serves the shard. `foqs shards enable` undoes it.
    """
    perform(cluster, lambda facts: operate.use_shard(facts, shard, ShardUse.DISABLED), wait)


@command(
    shards,
    "foqs shards remove 3 --config foqs.toml",
    "foqs shards remove 3 --items 1200 --yes -c foqs.toml",
    group=_MEMBERS,
)
def remove(
    shard: ShardArgument,
    cluster: ClusterOptions,
    items: Annotated[
        int, typer.Option(min=0, help="The shard holds exactly this many items; the command checks the number.")
    ] = 0,
    batches: Annotated[
        int, typer.Option(min=0, help="Exactly this many batches have their home in the shard, and have not ended.")
    ] = 0,
    uncounted: Annotated[
        bool, typer.Option("--uncounted", help="The command does not count the items, because the database is gone.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Remove a disabled shard from the cluster.

    Its items stay in the database, and no host serves them. If the shard holds items, --items must give their number,
    and --batches that of the batches which have their home there and have not ended.
    """

    def first() -> None:
        if not uncounted:
            _refuse_items(cluster.placed(cluster.look().shards[shard].url), shard, items, batches)
        confirm(f"Remove shard {shard}?", yes=yes)

    perform(cluster, lambda facts: operate.remove_shard(facts, shard), first=first)


def _refuse_items(url: str, shard: int, expected: int, batches: int) -> None:
    """Raise Invalid unless the shard's database holds exactly `expected` items, and `batches` that have not ended."""
    from foqs.store.maintenance import count_items

    try:
        found, kept, live = count_items(url, shard)
    except StoreError as error:
        raise Invalid(
            f"the items of shard {shard} cannot be counted: {error}. Try again when its database answers, or give "
            "--uncounted to give up the items"
        ) from None
    if found == expected and live == batches:
        return
    if found == expected:
        homes = f"shard {shard} is the home of {live:,} batch{' that has' if live == 1 else 'es that have'} not ended"
        mend = f"cancel them (foqs batch cancel), or give --batches {live} to lose their callbacks"
        raise Invalid(f"{homes}: {mend}")
    ended = f" ({kept:,} of them ended, and their topics keep them for a time)" if kept else ""
    holds = f"shard {shard} holds {counted(found, 'item')}{ended}"
    if expected:
        raise Invalid(f"{holds}, not {expected:,}: the shard is not removed")
    raise Invalid(
        f"{holds}, and no host would serve them: first drain the shard (foqs shards enable {shard}, then drain), or "
        f"give --items {found} to leave them in the database"
    )


@command(shards, "foqs shards move 3 --to host-2:7707 --config foqs.toml", group=_PLACES)
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
    shards,
    "foqs shards rebalance --dry-run --config foqs.toml",
    "foqs shards rebalance --max-moves 5 --config foqs.toml",
    group=_PLACES,
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


@command(shards, "foqs shards apply shards.toml --config foqs.toml", group=_MEMBERS)
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
    the command continues with the next one, and exits with 1 at the end.
    """
    wanted = _read(file)
    section = cluster.section()
    facts = look(section, cluster.connect_timeout)
    for fact in wanted:
        if fact.id not in facts.shards:
            refuse_password(cluster, fact.url)
        operate.ensure_shard(facts, fact)
    places = {fact.id: cluster.placed(fact.url) for fact in wanted}
    wrong = [
        why for fact in wanted if (why := _ensure(section, fact, places[fact.id], cluster.connect_timeout)) is not None
    ]
    if wrong:
        fail("; ".join(wrong))


def _read(path: Path) -> list[ShardFact]:
    """Return the shards of a file. Raises Invalid with every error but no value, because URLs hold passwords."""
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

    from foqs.config.schema import ShardSection

    class Shard(ShardSection):
        weight: Annotated[float, Field(gt=0, lt=1e6)] = 1.0

    class File(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

        shards: Annotated[tuple[Shard, ...], Field(min_length=1)]

        @field_validator("shards")
        @classmethod
        def distinct(cls, shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
            if min(len({shard.id for shard in shards}), len({shard.url for shard in shards})) < len(shards):
                raise ValueError("two shards have the same id or url")
            return shards

    try:
        found = File.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise Invalid(f"{path}: {'; '.join(lines)}") from None
    except RecursionError:
        raise Invalid(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{path}: {error}") from None
    return [ShardFact(shard.id, shard.url, shard.weight) for shard in found.shards]


def _ensure(section: ZookeeperSection, fact: ShardFact, place: str, connect_s: float) -> str | None:
    """Add one shard, whose database is reached by the URL `place`. Return the reason if that failed."""

    async def add(cluster: Cluster) -> Change:
        if fact.id not in cluster.facts.shards:
            await _adopt_kept(cluster, replace(fact, url=place))
        return await cluster.carry_out(lambda facts: operate.ensure_shard(facts, fact), audit)

    try:
        _refuse_bad(place, fact.id, create=True)
        change = connected(section, connect_s, add)
    except FoqsError as error:
        return f"shard {fact.id}: {error}"
    except StoreError as error:
        return f"shard {fact.id}: {explained(error)}"
    print(f"shard {fact.id} is added" if change.action is not None else change.says, flush=True)
    return None


@command(shards, "foqs shards await --timeout 300 --config foqs.toml", name="await", group=_MEMBERS)
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
    config = cluster.load()
    section = section_of(config)
    deadline, said = time.monotonic() + timeout, ""
    while missing := _missing(section, config.store.secrets_dir, cluster.connect_timeout):
        if time.monotonic() > deadline:
            raise Unavailable(f"the shards are not complete after {timeout:g} s (--timeout): {missing}")
        if missing != said:
            print(f"waiting: {missing}", file=sys.stderr, flush=True)
            said = missing
        time.sleep(_LOOK_S)
    print("the cluster has its shards")


def _missing(section: ZookeeperSection, secrets_dir: Path | None, connect_s: float) -> str:
    """Return the first part that the cluster lacks; empty if it is complete."""
    from concurrent.futures import ThreadPoolExecutor

    try:
        shards = look(section, connect_s).shards.values()
    except Unavailable as error:
        return error.message
    if not shards:
        return "the cluster has no shards"
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(
            partial(_lacks, secrets_dir), (shard for shard in shards if shard.use is not ShardUse.DISABLED)
        )
        return next(filter(None, found), "")


def _lacks(secrets_dir: Path | None, shard: ShardFact) -> str:
    from foqs.store.maintenance import check_tables
    from foqs.store.passwords import placed

    try:
        wrong = check_tables(placed(shard.url, secrets_dir))
    except StoreError:
        return ""
    return f"shard {shard.id}: {wrong[0]}" if wrong else ""
