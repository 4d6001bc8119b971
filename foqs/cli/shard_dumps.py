"""`foqs shards backup` and `foqs shards restore`: dumps of shards' databases, and their way back."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs import __version__
from foqs.checks import counted, printable
from foqs.cli.main import command
from foqs.cli.operators import ClusterOptions, YesOption, audit_change, confirm, look
from foqs.cli.shard_databases import shard_urls, shards
from foqs.cli.shard_url import given_url, refuse_password
from foqs.cli.terminal import partly, say
from foqs.errors import Invalid
from foqs.ids import MAX_SHARD
from foqs.shardmgr.facts import ShardUse
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foqs.store.dump import Manifest
    from foqs.store.restore import Target

_DUMPS = "Dumps"


@command(
    shards,
    "foqs shards backup --all --to /var/backups/foqs -c foqs.toml",
    "foqs shards backup 3 4 --to /var/backups/foqs -c foqs.toml",
    group=_DUMPS,
)
def backup(
    cluster: ClusterOptions,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The command writes the dumps into this folder.")],
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", min=1, max=MAX_SHARD, help="The command dumps the shards with these numbers."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The command dumps every shard.")] = False,
) -> None:
    """Dump shards into files, one consistent dump for each shard, while hosts serve them.

    The command uses mariadb-dump or mysqldump, and the online backup of SQLite. Each dump has a manifest next to it, a
    JSON file, which `foqs shards restore` needs. The files have the payloads of items: only their owner can read them.
    The command continues after a shard that fails, and then exits with 1.
    """
    from foqs.store.dump import back_up

    if bool(numbers) == every:
        raise Invalid("give the numbers of shards, or --all for every shard")
    urls = dict(shard_urls(cluster))
    if missing := sorted(set(numbers or ()) - urls.keys()):
        raise Invalid(f"there is no shard {missing[0]}: it is one of {', '.join(map(str, sorted(urls)))}")
    failed = False
    for shard in sorted(set(numbers or urls)):
        began = time.monotonic()
        try:
            with partly(f"shard {shard}: no dump"):
                dump, made = back_up(urls[shard], shard, to, now=_now, foqs=__version__)
        except StoreError as error:
            failed = True
            say(f"shard {shard}: no dump: {explained(error)}")
            continue
        print(f"shard {shard}: {dump} ({made.bytes:,} bytes, {time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        sys.exit(1)


def _now() -> datetime:
    return datetime.now(UTC)


@command(
    shards,
    "foqs shards restore DUMP.sql.gz --dry-run -c foqs.toml",
    "foqs shards restore DUMP.sql.gz --replace -c foqs.toml",
    "foqs shards restore DUMP.sql.gz --url - -c foqs.toml < url.txt",
    group=_DUMPS,
)
def restore(
    cluster: ClusterOptions,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The dump is in this file, and its manifest next to it.")
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="The command loads the dump into the database with this SQLAlchemy URL, not into the shard's own. "
            "- reads it from stdin, which hides it from `ps`.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="The command replaces what the database holds, after a question.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The command checks the dump and the database, and changes nothing.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Load dumps of `foqs shards backup` into the databases of their shards.

    No host may serve the shard: `disable` it first, or stop the single host. The command checks the dump, asks before
    it replaces items, loads the dump, and says what to do next. If it is broken off, no host opens the database until a
    restore has ended. The host that opens the shard ends the leases that came back, and gives no id again.
    """
    from foqs.store.dump import read_manifest, verify
    from foqs.store.restore import look_at_target
    from foqs.store.restore import restore as load

    if url is not None and len(files) > 1:
        raise Invalid("--url is the database of one shard: give one FILE")
    manifests = {}
    for file in files:
        with _named(str(file)):
            manifests[file] = read_manifest(file)
    numbers = [manifest.shard for manifest in manifests.values()]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise Invalid(f"two files are dumps of shard {twice[0]}: give one of them")
    for file, manifest in manifests.items():
        shard = manifest.shard
        place = _database(cluster, shard, url)
        with _named(f"shard {shard}"):
            verify(file, manifest)
            target = look_at_target(place, manifest)
        print(f"shard {shard}: {_said(file, manifest)}", flush=True)
        print(f"shard {shard}: {_held(target)}", flush=True)
        if target.used and not target.broken and not replace:
            raise Invalid(f"the database {target.place} is not empty: --replace replaces its shard, after a question")
        if dry_run:
            print(f"shard {shard}: nothing was changed (--dry-run)")
            continue
        if target.used:
            confirm(f"Replace what {target.place} holds by the dump?", yes=yes)
        unloaded = f"shard {shard}: the dump is not loaded"
        with _named(unloaded), partly(f"{unloaded}; run the command again"):
            load(place, file, manifest, replace=replace)
        before = {"database": target.place, "items": target.items}
        audit_change("shards.restore", before, {"shard": shard, "dump": file.name, "began": manifest.began})
        print(f"shard {shard}: the dump is loaded. {_next(cluster, manifest, url)}", flush=True)


def _database(cluster: ClusterOptions, shard: int, url: str | None) -> str:
    """Return the URL of the database to load into. Raises Invalid for a shard that hosts may serve."""
    from foqs.store.link import place_of
    from foqs.store.passwords import placed

    config = cluster.load()
    given = None
    if url is not None:
        given = given_url(url)
        refuse_password(cluster, given)
        given = placed(given, config.store.secrets_dir)
    if config.zookeeper is None:
        own = dict(shard_urls(cluster)).get(shard)
    else:
        fact = look(config.zookeeper, cluster.connect_timeout).shards.get(shard)
        own = None if fact is None else placed(fact.url, config.store.secrets_dir)
        same = own is not None and (given is None or place_of(given) == place_of(own))
        if same and fact is not None and fact.use is not ShardUse.DISABLED:
            raise Invalid(f"shard {shard} is {fact.use.name.lower()}: first `foqs shards disable {shard}`")
    if given is not None:
        return given
    if own is None:
        raise Invalid(f"there is no shard {shard}: add it to the configuration, or give --url")
    return own


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise Invalid(f"{what}: {explained(error)}") from None


def _said(file: Path, manifest: Manifest) -> str:
    began, product, server, by = map(printable, (manifest.began, manifest.product, manifest.server, manifest.foqs))
    return (
        f"{printable(str(file))} is the state of {began} ({product} {server}, schema version "
        f"{manifest.schema_version}, {manifest.bytes:,} bytes, by foqs {by})"
    )


def _held(target: Target) -> str:
    from foqs.store.restore import MOST_COUNTED

    if target.broken:
        return f"a restore into {target.place} was broken off"
    if not target.used:
        return f"{target.place} is empty"
    more = " or more" if target.items >= MOST_COUNTED else ""
    return f"{target.place} holds {counted(target.items, 'item')}{more}"


def _next(cluster: ClusterOptions, manifest: Manifest, url: str | None) -> str:
    """Return what the operator does next."""
    from foqs.store.tables import SCHEMA_VERSION

    steps = []
    shard = manifest.shard
    if manifest.schema_version != SCHEMA_VERSION:
        steps.append("`foqs shards migrate`")
    if cluster.load().zookeeper is None:
        steps += ["write the URL into foqs.toml"] if url is not None else []
        steps.append("start the host")
    else:
        steps += [f"`foqs shards set-url {shard}` with the URL"] if url is not None else []
        steps.append(f"`foqs shards enable {shard}`")
    return f"Next: {', then '.join(steps)}"
