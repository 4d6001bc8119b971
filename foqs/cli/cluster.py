"""`foqs cluster` and `foqs hosts`: show a cluster, drain a host, and run a cluster on this machine."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foqs.checks import counted
from foqs.checks import printable as name
from foqs.cli.cluster_backup import export, import_
from foqs.cli.interrupt import ends_at_once
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.operators import (
    ClusterOptions,
    WaitOptions,
    YesOption,
    confirm,
    connected,
    perform,
    quietly,
    section_of,
)
from foqs.cli.run import interruptible
from foqs.cli.terminal import Column, fail, listing, piped, table
from foqs.shardmgr import operate
from foqs.shardmgr.status import HostAnswer, HostRow, ShardRow, Status, status_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from foqs.config.load import Config
    from foqs.rpc.peer_caller import PeerCaller
    from foqs.shardmgr.facts import Facts, ShardFact
    from foqs.shardmgr.may_stop import Outlook
    from foqs.zk.session import Cluster
    from foqs_lab.cluster import LocalCluster

    Records = Mapping[int, ShardFact]
    Show = Callable[[Status, Records, bool], None]

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host has this id in `foqs hosts list`.")]
_WIDE = 10_000  # columns; a program that reads a pipe accepts lines of any length
_LOOK_S = 0.5
_ASK_MS = 2_000
_SAMPLE_S = 1.0
"""Time between two requests to a host; its load is the difference of their counters."""

app = typer.Typer()
cluster_app = commands(
    app,
    "cluster",
    "Show a cluster, or run one on this machine.",
    "foqs cluster status --config foqs.toml",
    "foqs cluster up",
)
hosts_app = commands(
    app,
    "hosts",
    "List hosts, ask if one may be stopped, move all shards off it, or let it take shards again.",
    "foqs hosts may-stop host-2:7707 --config foqs.toml",
    "foqs hosts drain host-2:7707 --config foqs.toml",
)


@command(cluster_app, "foqs cluster status --config foqs.toml", "foqs cluster status --config foqs.toml --watch --json")
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
    """Show the hosts and shards of a cluster, owners with epochs, and moves in progress.

    The command shows what ZooKeeper says, also while no host answers. `foqs status` asks the hosts, and names
    faults and remedies.
    """
    try:
        _follow(cluster, _json_shown(None if watch else 2) if as_json else _tables_shown(clear=watch), watch=watch)
    except KeyboardInterrupt:
        if not watch:
            raise


def ask_cluster(cluster: ClusterOptions) -> tuple[Status, Records]:
    """Return the status of a cluster, and the records of its shards. Raises Invalid, Unavailable."""
    found: list[tuple[Status, Records]] = []
    _follow(cluster, lambda status, records, _: found.append((status, records)), watch=False)
    return found[0]


def _follow(cluster: ClusterOptions, show: Show, *, watch: bool) -> None:
    """Show the status with the answers of the hosts, and with `watch` again after each change."""

    async def follow(session: Cluster) -> None:
        shown: tuple[Facts, bool] | None = None
        while shown is None or watch:
            if shown != (now := (session.facts, session.connected)):
                addresses = {host: fact.address for host, fact in now[0].hosts.items()}
                answers = await _ask_hosts(config, addresses)
                shown = (session.facts, session.connected)  # the answers took more than a second
                show(status_of(session.facts, answers), session.facts.shards, session.connected)
            if watch:
                await session.news()

    config = cluster.load()
    connected(section_of(config), cluster.connect_timeout, follow)


async def _ask_hosts(config: Config, addresses: Mapping[str, str]) -> dict[str, HostAnswer]:
    """Return the answers of the hosts by their ids, without hosts that do not answer."""
    import asyncio

    from foqs.api.auth import proofs_of
    from foqs.bounds import Budget
    from foqs.config.schema import AuthSection
    from foqs.idl import idl
    from foqs.rpc.certificates import peer_context
    from foqs.rpc.peer_caller import PeerCaller

    limits = config.limits.limits()
    caller = PeerCaller(limits, Budget(config.host.budget_bytes), tls=peer_context(config.tls), report=lambda *_: None)
    auth = config.auth or AuthSection()
    proof, next_proof = proofs_of(auth.cluster_secret, auth.cluster_secret_previous)
    context = idl.RequestContext(host_proof=proof, host_proof_next=next_proof)
    try:
        first = await _ask_each(caller, addresses, context)
        if not first:
            return {}
        began_s = time.monotonic()
        await asyncio.sleep(_SAMPLE_S)
        second = await _ask_each(caller, {host: addresses[host] for host in first}, context)
        return {host: _answer(first[host], second[host], time.monotonic() - began_s) for host in second}
    finally:
        caller.close()


def _answer(before: Any, after: Any, seconds: float) -> HostAnswer:
    rows_before, rows = before.shard_rows or {}, after.shard_rows or {}
    # A count that fell was reset: the shard was opened in between.
    rates = {n: round((rows[n] - rows_before[n]) / seconds, 1) for n in rows if rows_before.get(n, 1 << 63) <= rows[n]}
    return HostAnswer(after.version, rates, after.shard_items or {}, after.shard_order_keys or {})


async def _ask_each(caller: PeerCaller, addresses: Mapping[str, str], context: Any) -> dict[str, Any]:
    import asyncio

    from foqs.idl import idl

    request = idl.GetServerInfoRequest(count_items=True, context=context)
    asked: dict[str, asyncio.Future[Any]] = {host: asyncio.get_running_loop().create_future() for host in addresses}
    for host, answer in asked.items():
        caller.call(addresses[host], "GetServerInfo", request, _ASK_MS, partial(_answered, answer))
    await asyncio.gather(*asked.values())
    return {host: answer.result() for host, answer in asked.items() if answer.result() is not None}


def _answered(outcome: asyncio.Future[Any], response: Any, error: Exception | None) -> None:
    if not outcome.done():
        outcome.set_result(None if error is not None else response)


def _json_shown(indent: int | None) -> Show:
    def show(status: Status, records: Records, connected: bool) -> None:
        """`connected` is false if ZooKeeper does not answer; the rest is then its last state."""
        shards = [shard_record(row, records) for row in status.shards]
        print(json.dumps({"connected": connected, **asdict(status), "shards": shards}, indent=indent), flush=True)

    return show


def shard_record(row: ShardRow, records: Records) -> dict[str, Any]:
    """Return a shard as it is written in JSON."""
    return {**asdict(row), "database": _database(records, row.id)}


def _console() -> Console:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)


def _tables_shown(*, clear: bool) -> Show:
    console = _console()

    def show(status: Status, records: Records, connected: bool) -> None:
        if clear:
            console.clear()
        for line in _summary(status, connected):
            console.print(line)
        console.print()
        console.print(table(status.hosts, HOST_COLUMNS), crop=False)
        console.print()
        console.print(table(status.shards, shard_columns(records)), crop=False)
        if clear and not console.is_terminal:
            console.print()
        sys.stdout.flush()

    return show


def _summary(status: Status, connected: bool) -> list[str]:
    version = "none yet" if status.assignment_version < 0 else f"version {status.assignment_version}"
    controller = "none" if status.controller is None else name(status.controller)
    lines = [f"assignment {version}, controller {controller}, {status.under_way} in progress, {_evenness(status)}"]
    if not connected:
        return ["ZooKeeper does not answer; this is the last known state", *lines]
    if status.writing_back:
        return ["ZooKeeper lost data: the hosts write back their knowledge, and act on nothing before the end", *lines]
    if not status.shards:
        return ["no shard: `foqs shards add` adds one; if ZooKeeper lost its data: `foqs cluster import`", *lines]
    return lines


def _evenness(status: Status) -> str:
    if status.imbalance is None or status.best_imbalance is None:
        return "imbalance -"
    if status.imbalance <= status.best_imbalance:
        return "as even as can be"
    return f"imbalance {status.imbalance:.0%} ({status.best_imbalance:.0%} at best)"


def _shown(value: float | None, form: str = "") -> str | None:
    return None if value is None else format(value, form)


HOST_COLUMNS: list[Column[HostRow]] = [
    Column("host", lambda host: name(host.id), "folded"),
    Column("address", lambda host: name(host.address or "-"), "folded"),
    Column("state", lambda host: host.state),
    Column("assigned", lambda host: str(host.assigned), "number"),
    Column("served", lambda host: str(host.served), "number"),
    Column("rows/s", lambda host: _shown(host.load, ".1f"), "number"),
    Column("items", lambda host: _shown(host.items), "number"),
    Column("version", lambda host: name(host.version or "-")),
]


def shard_columns(records: Records) -> list[Column[ShardRow]]:
    """Return the columns of a table of shards, with the databases of the records."""
    return [
        Column("shard", lambda shard: str(shard.id), "number"),
        Column("state", lambda shard: shard.state),
        Column("use", lambda shard: shard.use),
        Column("weight", lambda shard: _shown(shard.weight, "g"), "number"),
        Column("assigned to", lambda shard: None if shard.assigned is None else name(shard.assigned), "folded"),
        Column("served by", lambda shard: None if shard.owner is None else name(shard.owner), "folded"),
        Column("epoch", lambda shard: _shown(shard.epoch), "number"),
        Column("rows/s", lambda shard: _shown(shard.load, ".1f"), "number"),
        Column("items", lambda shard: _shown(shard.items), "number"),
        Column("order keys", lambda shard: _shown(shard.order_keys), "number"),
        Column("database", lambda shard: _database(records, shard.id)),
    ]


def _database(records: Records, shard: int) -> str | None:
    """Return server and name, without user, password and options, which may hold keys."""
    from foqs.store.link import place_of

    if (record := records.get(shard)) is None or (place := place_of(record.url)) is None:
        return None
    return name("/".join(place))


@command(hosts_app, "foqs hosts list --config foqs.toml", name="list")
@piped
def list_(cluster: ClusterOptions, as_json: JsonOption = False) -> None:
    """List the hosts of a cluster: a table on a terminal, else JSON lines.

    `foqs cluster status` shows the shards, too.
    """
    status, _ = ask_cluster(cluster)
    listing(status.hosts, HOST_COLUMNS, as_json, asdict)


@command(
    hosts_app,
    "foqs hosts drain host-2:7707 --config foqs.toml",
    "foqs hosts drain host-2:7707 -c foqs.toml --no-wait",
)
def drain(host: HostArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Move all shards of a host to the other hosts, and keep it empty.

    The command waits until the host serves no shard. `foqs hosts undrain` undoes it.
    """
    perform(cluster, lambda facts: operate.drain_host(facts, host), wait)


@command(hosts_app, "foqs hosts undrain host-2:7707 --config foqs.toml")
def undrain(host: HostArgument, cluster: ClusterOptions) -> None:
    """Let a drained host take shards again."""
    perform(cluster, lambda facts: operate.undrain_host(facts, host))


@command(
    hosts_app,
    "foqs hosts may-stop host-2:7707 --config foqs.toml",
    "foqs hosts may-stop host-2:7707 -c foqs.toml --json",
    name="may-stop",
)
def may_stop(
    host: HostArgument,
    cluster: ClusterOptions,
    token: Annotated[
        str | None,
        typer.Option(envvar="FOQS_TOKEN", help="This credential has the right admin. @FILE reads it from a file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints one JSON document.")] = False,
) -> None:
    """Say if a host may be taken down now, what happens then, and why not.

    The exit status is 0 if the host may be stopped, and 1 if a reason is against it. The command changes nothing. It
    looks for shards that no other host can take, for moves in progress, for databases that do not answer, and for room
    on the other hosts.
    """
    from foqs.cli.connection import Connection
    from foqs.cli.status import ask
    from foqs.shardmgr.may_stop import outlook_of

    facts = cluster.look()
    addresses = ",".join(sorted(fact.address for fact in facts.hosts.values()))
    found, errors = None, ["no host lives"]
    if addresses:
        found, errors = ask(Connection(addresses, token=token, tls=_tls_of(cluster.load())))
    outlook = outlook_of(facts, host, () if found is None else found.hosts, errors)
    if as_json:
        against = [one._asdict() for one in outlook.against]
        print(
            json.dumps(
                {"host": host, "may_stop": not against, "against": against, "effects": outlook.effects}, indent=2
            )
        )
    else:
        _print_outlook(outlook)
    sys.stdout.flush()
    raise SystemExit(1 if outlook.against else 0)


def _tls_of(config: Config) -> str | None:
    """Return how a client of this machine's hosts connects."""
    if config.tls is None:
        return None
    return "on" if config.tls.ca_file is None else f"ca_file={config.tls.ca_file}"


def _print_outlook(outlook: Outlook) -> None:
    from foqs.cli.status import indented

    console = _console()
    if not outlook.against:
        indented(console, "YES: ", f"host {name(outlook.host)} may be stopped: {'; '.join(outlook.effects)}")
        return
    console.print(f"NO: host {name(outlook.host)} should not be stopped now", soft_wrap=True)
    for number, one in enumerate(outlook.against, 1):
        console.print()
        indented(console, f"{number}. ", one.text)
        indented(console, "   -> ", one.remedy)


@command(cluster_app, "foqs cluster renew-acl --config foqs.toml", name="renew-acl")
def renew_acl(cluster: ClusterOptions, yes: YesOption = False) -> None:
    """Give the nodes of a cluster in ZooKeeper to the credentials of foqs.toml.

    With acl = "creator" a node belongs to the credentials that its creator had. Use the command while the credential is
    replaced (docs/run/rotation.md), or after a change of acl. Hosts without one of these credentials lose the cluster.
    """
    from foqs.cli.operators import audit_change
    from foqs.zk.inspect import renew_acls

    section = cluster.section()
    quietly()
    pairs = (section.auth_credential, section.auth_credential_previous) if section.acl == "creator" else ()
    users = [pair.partition(":")[0] for pair in pairs if pair is not None]
    owners = " and ".join(f"{user} ({which})" for user, which in zip(users, ("new", "previous"), strict=False))
    if len(users) < 2:
        owners = users[0] if users else "every account"
    confirm(f"Give the nodes below {section.root} to {owners}?", yes=yes)
    count = renew_acls(section, timeout_s=cluster.connect_timeout)
    audit_change("cluster.renew_acl", {}, {"root": section.root, "acl": section.acl, "nodes": count})
    print(f"{counted(count, 'node')} below {section.root} belong to {owners}")


@command(cluster_app, "foqs cluster up", "foqs cluster up --hosts 2 --shards 4 --kind mysql --keep")
def up(
    hosts: Annotated[int, typer.Option(min=1, max=16, help="The cluster has this many host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="The cluster has this many database servers.")] = 2,
    shards: Annotated[
        int, typer.Option(min=1, max=1_000, help="The database servers hold this many shards together.")
    ] = 8,
    kind: Annotated[
        Literal["mariadb", "mysql"], typer.Option(help="The database servers are of this kind.")
    ] = "mariadb",
    keep: Annotated[bool, typer.Option("--keep", help="The command keeps the configuration and the logs.")] = False,
) -> None:
    """Run a private cluster for development and tests until Ctrl-C.

    The command starts database servers, a ZooKeeper, and hosts that share the shards. Ctrl-C stops all of them and
    removes their files. --keep leaves the configuration and the logs.
    """
    with ends_at_once():
        from foqs_lab.cluster import local_cluster, make_shards
        from foqs_lab.servers import ServerSettings, ServerUnavailable, start_database_server
        from foqs_lab.servers.programs import find_zookeeper

    quietly()
    try:
        find_zookeeper()  # the servers start first, which takes seconds
        with interruptible(), ExitStack() as stack:
            folder = stack.enter_context(_folder(keep))
            settings = ServerSettings(buffer_pool_bytes=64 << 20)
            servers = [stack.enter_context(start_database_server(kind, settings)) for _ in range(mysql)]
            made = make_shards(servers, -(-shards // mysql), "foqs")[:shards]
            cluster = stack.enter_context(local_cluster(made, folder))
            cluster.start(*(f"host-{n}" for n in range(1, hosts + 1)))
            cluster.settled()
            _print(cluster)
            _watch(cluster)
    except ServerUnavailable as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("the cluster is stopped", file=sys.stderr)


command(
    cluster_app,
    "foqs cluster export /var/backups/foqs/cluster.json -c foqs.toml",
    "foqs cluster export -c foqs.toml | age -r RECIPIENT > cluster.json.age",
)(export)
command(
    cluster_app,
    "foqs cluster import cluster.json -c foqs.toml --dry-run",
    "foqs cluster import cluster.json -c foqs.toml --yes",
    name="import",
)(import_)


def _print(cluster: LocalCluster) -> None:
    for host_name, host in cluster.hosts.items():
        print(
            f"{host_name}: 127.0.0.1:{host.port}, pid {host.pid}, "
            f"admin http://127.0.0.1:{host.admin_port}, log {host.log}"
        )
    print(f"zookeeper: {cluster.zookeeper.hosts}")
    for server in dict.fromkeys(shard.server for shard in cluster.shards):
        numbers = [shard.number for shard in cluster.shards if shard.server is server]
        print(f"{server.kind}: 127.0.0.1:{server.port}, shards {numbers[0]} to {numbers[-1]}")
    print(f"export FOQS_ADDRESS={','.join(f'127.0.0.1:{host.port}' for host in cluster.hosts.values())}")
    print(f"export FOQS_CONFIG={cluster.config}", flush=True)


def _watch(cluster: LocalCluster) -> None:
    """Report each host that ends. Returns at a signal; fails when no host is left."""
    alive = dict(cluster.hosts)
    while alive:
        time.sleep(_LOOK_S)
        for host_name, host in list(alive.items()):
            if not host.alive:
                del alive[host_name]
                print(f"host {host_name} has ended: read {host.log}", file=sys.stderr)
    fail("every host of the cluster has ended: read their logs (--keep keeps them)")


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="foqs-cluster-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"configuration and logs: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
