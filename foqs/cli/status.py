"""`foqs cluster status`: show which host serves which shard, as tables or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.cli.errors import piped
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.operators import ClusterOptions, cluster_of, quietly
from foqs.cli.tables import plain_table
from foqs.shardmgr.operate import name
from foqs.shardmgr.status import Status, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.table import Table

    from foqs.config.load import Config
    from foqs.shardmgr.facts import Facts, ShardFact
    from foqs.shardmgr.status import Answers

    Show = Callable[[Facts, bool, Answers], None]

app = commands(
    "cluster",
    "Show a cluster, or run one on this machine.",
    "foqs cluster status --config foqs.toml",
    "foqs cluster up",
)

_WIDE = 10_000  # columns; a program that reads a pipe accepts lines of any length


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(app, "foqs cluster status --config foqs.toml", "foqs cluster status --config foqs.toml --watch --json")
@piped
def status(
    cluster: ClusterOptions,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="The command shows the cluster again at each change, until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="The command prints one JSON document; with --watch, one line for each change."),
    ] = False,
) -> None:
    """Show the hosts and shards of a cluster, owners with epochs, and moves in progress."""
    import asyncio

    from foqs.config.load import load

    show = _json_shown(indent=None if watch else 2) if as_json else _tables_shown(clear=watch)
    whole = load(cluster.config)
    cluster_of(whole)
    quietly()
    try:
        asyncio.run(_show(whole, cluster.connect_timeout, show, watch=watch))
    except KeyboardInterrupt:
        if not watch:
            raise


def hosts_table(facts: Facts, answers: Answers) -> Table:
    """Return a row for each host."""
    return _hosts(status_of(facts, answers))


def shards_table(facts: Facts, answers: Answers) -> Table:
    """Return a row for each shard."""
    return _shards(status_of(facts, answers), facts.shards)


def ask_cluster(cluster: ClusterOptions) -> tuple[Facts, Answers]:
    """Return the facts of a cluster, and what its hosts answered. Raises Invalid, Unavailable."""
    import asyncio

    from foqs.config.load import load

    found: list[tuple[Facts, Answers]] = []
    whole = load(cluster.config)
    cluster_of(whole)
    quietly()
    asyncio.run(
        _show(whole, cluster.connect_timeout, lambda facts, _, answers: found.append((facts, answers)), watch=False)
    )
    return found[0]


async def _show(config: Config, connect_s: float, show: Show, *, watch: bool) -> None:
    from foqs.cli.ask import ask_hosts
    from foqs.cli.cluster import Cluster

    async with Cluster(cluster_of(config), connect_s) as cluster:
        shown: tuple[Facts, bool] | None = None
        while shown is None or watch:
            if shown != (now := (cluster.facts, cluster.connected)):
                addresses = {host: fact.address for host, fact in now[0].hosts.items()}
                answers = await ask_hosts(config, addresses)
                shown = (cluster.facts, cluster.connected)  # the answers took more than a second
                show(*shown, answers)
            if watch:
                await cluster.news()


# ------------------------------------------------------------------------------------------------------- shapes


def _json_shown(indent: int | None) -> Show:
    def show(facts: Facts, connected: bool, answers: Answers) -> None:
        print(json.dumps(document(facts, connected, answers), indent=indent), flush=True)

    return show


def document(facts: Facts, connected: bool, answers: Answers) -> dict[str, Any]:
    """Return the status as JSON.

    `connected` is false if ZooKeeper does not answer; the rest is then its last state. `database` is the server and
    the name in the shard's URL.
    """
    status = asdict(status_of(facts, answers))
    for row in status["shards"]:
        row["database"] = _database(facts.shards, row["id"])
    return {"connected": connected, **status}


def _tables_shown(*, clear: bool) -> Show:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=_WIDE)

    def show(facts: Facts, connected: bool, answers: Answers) -> None:
        if clear:
            console.clear()
        status = status_of(facts, answers)
        for line in _summary(status, connected):
            console.print(line)
        console.print()
        console.print(_hosts(status))
        console.print()
        console.print(_shards(status, facts.shards))
        if clear and not console.is_terminal:
            console.print()
        sys.stdout.flush()

    return show


def _summary(status: Status, connected: bool) -> list[str]:
    version = "none yet" if status.assignment_version < 0 else f"version {status.assignment_version}"
    controller = "none" if status.controller is None else name(status.controller)
    lines = [f"assignment {version}, controller {controller}, {status.under_way} under way, {_evenness(status)}"]
    return lines if connected else ["ZooKeeper does not answer; this is the last known state", *lines]


def _evenness(status: Status) -> str:
    if status.imbalance is None or status.best_imbalance is None:
        return "imbalance -"
    if status.imbalance <= status.best_imbalance:
        return "as even as can be"
    return f"imbalance {status.imbalance:.0%} ({status.best_imbalance:.0%} at best)"


def _hosts(status: Status) -> Table:
    table = plain_table(
        "host", "address", "state", "assigned", "served", "rows/s", "items", "version",
        numbers=("assigned", "served", "rows/s", "items"),
    )  # fmt: skip
    for row in status.hosts:
        table.add_row(
            name(row.id),
            name(row.address or "-"),
            row.state,
            str(row.assigned),
            str(row.served),
            _shown(row.load, ".1f"),
            _shown(row.items),
            name(row.version or "-"),
        )
    return table


def _shown(value: object, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _shards(status: Status, records: Mapping[int, ShardFact]) -> Table:
    table = plain_table(
        "shard", "state", "use", "weight", "assigned to", "served by", "epoch", "rows/s", "items", "database",
        numbers=("shard", "weight", "epoch", "rows/s", "items"),
    )  # fmt: skip
    for row in status.shards:
        table.add_row(
            str(row.id),
            row.state,
            row.use or "-",
            _shown(row.weight, "g"),
            "-" if row.assigned is None else name(row.assigned),
            "-" if row.owner is None else name(row.owner),
            _shown(row.epoch),
            _shown(row.load, ".1f"),
            _shown(row.items),
            _database(records, row.id) or "-",
        )
    return table


def _database(records: Mapping[int, ShardFact], shard: int) -> str | None:
    """Return server and name, without user, password and options, which may hold keys."""
    from foqs.store.link import place_of

    if (record := records.get(shard)) is None or (place := place_of(record.url)) is None:
        return None
    return name("/".join(place))
