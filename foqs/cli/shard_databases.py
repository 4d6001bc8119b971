"""`foqs shards create|migrate|list|check|renew|settings`: the databases of the shards of foqs.toml or of a cluster."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.checks import counted
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.operators import ClusterOptions, YesOption, confirm, look
from foqs.cli.terminal import Column, fail, json_text, listing, piped, say
from foqs.errors import Conflict, FoqsError, Invalid
from foqs.ids import MAX_SHARD
from foqs.store.protocol import StoreDown, StoreError, explained

if TYPE_CHECKING:
    from concurrent.futures import Future

    from foqs.policies.settings import Settings
    from foqs.store.maintenance import Kept

_DATABASES = "Databases"
_SERVERS_AT_ONCE = 16
_COMPLETE = b""
"""The namespace of the row that says that a shard has all copies."""
_CLUSTER = "the cluster"
ShardArgument = Annotated[int, typer.Argument(metavar="ID", min=1, max=MAX_SHARD, help="The shard has this number.")]

app = typer.Typer()
shards = commands(
    app,
    "shards",
    "List, make, check and move shards.",
    "foqs shards check --config foqs.toml",
    "foqs shards move 3 --to host-2:7707 --config foqs.toml",
)


@command(shards, "foqs shards create --config foqs.toml", group=_DATABASES)
def create(cluster: ClusterOptions) -> None:
    """Create the tables of every shard of foqs.toml or of the cluster.

    Tables that exist stay unchanged.
    """
    from foqs.store.maintenance import create_schema

    for shard, url in shard_urls(cluster):
        with _reported(shard):
            create_schema(url, shard)
        print(f"shard {shard}: ready")


@command(shards, "foqs shards migrate --config foqs.toml --dry-run", group=_DATABASES)
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
            say(f"shard {shard}: {explained(error)}")
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


@command(shards, "foqs shards list --config foqs.toml", name="list", group=_DATABASES)
@piped
def list_(cluster: ClusterOptions, as_json: JsonOption = False) -> None:
    """List the shards of foqs.toml or of the cluster: a table on a terminal, else JSON lines.

    The command does not ask the databases: `foqs shards check` does.
    """
    if cluster.load().zookeeper is not None:
        from foqs.cli.cluster import ask_cluster, shard_columns, shard_record

        status, records = ask_cluster(cluster)
        listing(status.shards, shard_columns(records), as_json, lambda row: shard_record(row, records))
        return
    from foqs.store.link import place_of

    places = [(shard, place_of(url)) for shard, url in shard_urls(cluster)]
    databases = [(shard, None if place is None else "/".join(place)) for shard, place in places]
    columns: list[Column[tuple[int, str | None]]] = [
        Column("shard", lambda row: str(row[0]), "number"),
        Column("database", lambda row: row[1], "folded"),
    ]
    listing(databases, columns, as_json, lambda row: {"id": row[0], "database": row[1]})


@command(
    shards,
    "foqs shards check --config foqs.toml",
    "foqs shards check --rows --config foqs.toml",
    group=_DATABASES,
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
    from foqs.doctor.examine import PASSWORD_REMEDY
    from foqs.store.passwords import has_password

    urls = shard_urls(cluster)
    known = cluster.load().zookeeper is not None  # other accounts read ZooKeeper, and foqs.toml is the host's own
    wrong, copies = False, {}
    for shard, found in examine(urls, rows=rows):
        wrong = wrong or bool(found.findings)
        for finding in found.findings or ["good"]:
            print(f"shard {shard}: {finding}")
        if known and has_password(dict(urls)[shard]):
            print(f"shard {shard}: warning: its URL in ZooKeeper has the password -> {PASSWORD_REMEDY}")
        if found.restored:
            print(f"shard {shard}: {found.restored}")
        copies[shard] = found.settings
    if conflict := conflict_of(copies):
        wrong = True
        print(conflict)
    if wrong:
        sys.exit(1)


@dataclass(slots=True)
class Examined:
    """The faults of a shard, each with its remedy, and its copies of namespaces' settings. `down`: the database does
    not answer. `restored`: a line about the last restore of the shard; empty if there was none, or tables are wrong."""

    findings: list[str] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    down: bool = False
    restored: str = ""


def examine(urls: Sequence[tuple[int, str]], *, rows: bool) -> Iterator[tuple[int, Examined]]:
    """Yield the result of each shard, in order: servers in parallel, the shards of a server one after another.

    A server that did not answer for one shard is not asked about its other ones.
    """

    from concurrent.futures import Future, ThreadPoolExecutor

    from foqs.store.link import place_of

    servers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for shard, url in urls:
        place = place_of(url)
        servers[url if place is None or place[0].startswith("sqlite") else place[0]].append((shard, url))
    results: dict[int, Future[Examined]] = {shard: Future() for shard, _ in urls}
    with ThreadPoolExecutor(_SERVERS_AT_ONCE) as pool:
        for shards in servers.values():
            pool.submit(_server, shards, rows, results)
        for shard, _ in urls:
            yield shard, results[shard].result()


def _server(shards: Sequence[tuple[int, str]], rows: bool, results: Mapping[int, Future[Examined]]) -> None:
    """Examine the shards of one server."""
    silent = ""
    for shard, url in shards:
        try:
            found = Examined([silent], down=True) if silent else examined(url, shard, rows=rows)
        except Exception as error:  # noqa: BLE001 - the command raises it
            results[shard].set_exception(error)
            continue
        if found.down and not silent:
            silent = f"not checked: its server did not answer for shard {shard}"
        results[shard].set_result(found)


def examined(url: str, shard: int, *, rows: bool = False) -> Examined:
    """Check one shard. Raises no StoreError: that is a fault of the shard."""
    from foqs.policies.settings import parse_document
    from foqs.store.checkup import check_shard

    try:
        found = check_shard(url, shard, rows=rows)
    except StoreError as error:
        return Examined([explained(error)], down=isinstance(error, StoreDown))
    made = Examined([f"{one.found} -> {one.mend}" if one.mend else one.found for one in found.findings])
    made.restored = "" if found.findings or not found.restore.at_ms else _restored(*found.restore)
    for row in found.settings:
        if row.ns == _COMPLETE:
            continue
        try:
            made.settings.append(parse_document(row.ns.decode(), row.doc))
        except Invalid as error:
            made.findings.append(f"{error.message}: a host leaves them out -> restore table setting from a backup")
    return made


def conflict_of(copies: Mapping[int, Sequence[Settings]]) -> str:
    """Return why a host that opens all these shards would refuse to serve some of them: settings that were made apart.
    Empty if it would not."""
    from foqs.policies.settings import newest

    try:
        newest((shard, copy) for shard, settings in copies.items() for copy in settings)
    except Conflict as error:
        return error.message
    return ""


def _restored(at_ms: int, ended: int) -> str:
    """Return a line about the last restore of a shard."""
    from datetime import UTC, datetime

    if at_ms < 0:
        return "a dump was put back: the host that opens the shard ends the leases that came back, and skips ids"

    when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    leases = counted(ended, "lease")
    return f"a host found an older copy here on {when}, and ended the {leases} that came back with it"


@command(shards, "foqs shards renew 3 --config copy.toml", group=_DATABASES)
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
    with _reported(shard):
        identity = renew_identity(url, shard)
    print(f"shard {shard}: its identity is {identity} now")


@contextmanager
def _reported(shard: int) -> Iterator[None]:
    """End the command with a StoreError of the block, and name the shard."""
    try:
        yield
    except StoreError as error:
        fail(f"shard {shard}: {explained(error)}")


def shard_urls(cluster: ClusterOptions) -> list[tuple[int, str]]:
    """Return number and URL of each shard. Raises Invalid if there is none."""
    from foqs.store.passwords import placed

    config = cluster.load()
    if config.zookeeper is not None:
        shards = look(config.zookeeper, cluster.connect_timeout).shards
        if not shards:
            raise Invalid("the cluster has no shards: add one with `foqs shards add`")
        return [(shard, placed(shards[shard].url, config.store.secrets_dir)) for shard in sorted(shards)]
    if not config.shards:
        raise Invalid("the configuration has neither [[shards]] nor [zookeeper]: add one of them")
    return [(section.id, placed(section.url, config.store.secrets_dir)) for section in config.shards]


@command(
    shards,
    "foqs shards settings --config foqs.toml",
    "foqs shards settings 2 --export --ns shop -c foqs.toml",
    "foqs shards settings 2 --discard --ns shop -c foqs.toml",
    group=_DATABASES,
)
def settings(
    cluster: ClusterOptions,
    shard: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", min=1, max=MAX_SHARD, help="The command looks at this shard. Default: at all shards."
        ),
    ] = None,
    ns: Annotated[
        str | None, typer.Option(help="The command looks at this namespace. Default: at all namespaces.")
    ] = None,
    export: Annotated[
        bool,
        typer.Option("--export", help="The command prints the copies of one shard, as `foqs settings export`."),
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="The command removes the copies of one shard, after a question.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Compare the copies of settings in the shards' databases.

    The command names the copies that are older or newer than the settings of the cluster (without a cluster: than the
    newest copy), and the copies that were made apart from them. A host serves no shard with such a copy. The command
    exits with 1 if it finds one.
    """
    from foqs.store.maintenance import discard_settings, read_kept

    if (export or discard) and shard is None:
        raise Invalid("--export and --discard need the number of one shard: give it as the argument")
    if export and discard:
        raise Invalid("--export prints copies and --discard removes them: give one of the two")
    places = _places(cluster, shard)
    if not export and not discard:
        _compare(cluster, places, ns)
        return
    ((number, url),) = places
    with _reported(number):
        kept = {copy.ns: copy for copy in copies_of(read_kept(url, number)) if ns in (None, copy.ns)}
    if not kept:
        raise Invalid(f"shard {number} keeps no settings{'' if ns is None else f' of namespace {ns}'}")
    if export:
        for copy in kept.values():
            document = {"namespace": copy.ns, "version": copy.version, "entries": copy.entries}
            print(json_text(document, indent=2, sort_keys=True))
        return
    confirm(f"Remove the settings of {', '.join(sorted(kept))} from the database of shard {number}?", yes=yes)
    discard_settings(url, number, list(kept))
    for name in sorted(kept):
        print(f"shard {number}: the settings of {name} (version {kept[name].version}) are removed")


def _places(cluster: ClusterOptions, shard: int | None) -> list[tuple[int, str]]:
    places = shard_urls(cluster)
    if shard is None:
        return places
    if not (found := [(number, url) for number, url in places if number == shard]):
        raise Invalid(f"there is no shard {shard}: it is one of {', '.join(str(number) for number, _ in places)}")
    return found


def _compare(cluster: ClusterOptions, places: list[tuple[int, str]], ns: str | None) -> None:
    from foqs.policies.settings import Standing, standing

    config = cluster.load()
    known: dict[str, tuple[str, Settings]] = {}
    if config.zookeeper is not None:
        facts = look(config.zookeeper, cluster.connect_timeout)
        known = {name: (_CLUSTER, found) for name, found in facts.settings.items()}
    found = [(number, copy) for number, copy in _copies(places) if ns in (None, copy.ns)]
    if config.zookeeper is None:
        for number, copy in sorted(found, key=lambda one: -one[1].version):
            known.setdefault(copy.ns, (f"shard {number}", copy))
    apart = False
    for number, copy in found:
        place, other = known.get(copy.ns, (_CLUSTER, None))
        where = f"shard {number}: {copy.ns} version {copy.version}"
        if other is None:
            print(f"{where}, which {place} does not have")
        elif place == f"shard {number}":
            print(f"{where}, the newest")
        else:
            judged = standing(copy, other)
            apart |= judged is Standing.FOREIGN
            word = {Standing.SAME: "the same as", Standing.OLDER: "older than", Standing.NEWER: "newer than"}
            print(f"{where}, {word.get(judged, 'made apart from')} version {other.version} of {place}")
    if not found:
        print("no shard keeps settings")
    if apart:
        sys.exit(1)


def _copies(places: list[tuple[int, str]]) -> Iterator[tuple[int, Settings]]:
    """Yield the copies of each shard whose database answers, and report each other one."""
    from foqs.store.maintenance import read_kept

    for number, url in places:
        try:
            for copy in copies_of(read_kept(url, number)):
                yield number, copy
        except StoreError as error:
            say(f"shard {number}: {explained(error)}")
        except FoqsError as error:
            say(f"shard {number}: {error.message}")


def copies_of(kept: Kept) -> list[Settings]:
    """Return the copies that can be read. Raises Invalid for one that cannot."""
    from foqs.policies.settings import decode

    return [decode(row.ns.decode(), row.doc) for row in kept.settings if row.ns]
