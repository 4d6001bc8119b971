"""`foqs cluster export` and `foqs cluster import`: a copy of what a cluster keeps in ZooKeeper, and its way back."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs import __version__
from foqs.checks import counted
from foqs.cli.operators import ClusterOptions, YesOption, audit, confirm, connected, quietly
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.shardmgr.backup import Backup, Import
    from foqs.zk.session import Cluster

_STREAM = Path("-")
_MOST_LINES = 40


def export(
    cluster: ClusterOptions,
    file: Annotated[
        Path, typer.Argument(help="The command writes this file, for its owner alone; - is stdout.")
    ] = _STREAM,
) -> None:
    """Write what the cluster keeps in ZooKeeper as one JSON document, which `foqs cluster import` reads.

    The document has the shards with their URLs, the assignment, slots, marks, drained hosts, settings, and the
    cluster's identity. A URL that has a password is in it with the password: keep the file as you keep foqs.toml.
    Make an export regularly, and after each change of the shards.
    """
    from foqs.shardmgr.backup import encode_backup
    from foqs.zk.inspect import read_backup

    section = cluster.section()
    quietly()
    backup = read_backup(section, timeout_s=cluster.connect_timeout)
    if not backup.shards:
        raise Invalid(
            f"the cluster at {section.root} has no shard: nothing is exported, and no file is replaced. "
            "If ZooKeeper lost its data: `foqs cluster import` of an earlier export"
        )
    text = encode_backup(backup, at=datetime.now(UTC).isoformat(timespec="seconds"), version=__version__)
    if file == _STREAM:
        sys.stdout.write(text)
        return
    new = file.with_name(file.name + ".new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(descriptor)
        new.replace(file)
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from None
    print(f"{file}: {_content(backup)}; it may contain passwords")


def import_(
    file: Annotated[Path, typer.Argument(help="The file is an export; - is stdin.")],
    cluster: ClusterOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The command shows its changes, and writes nothing.")
    ] = False,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="The command adds what a cluster with shards lacks, and changes no other record."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="As --merge, and records of shards become as in the file.")
    ] = False,
    *,
    yes: YesOption = False,
) -> None:
    """Write an export back into a ZooKeeper that lost its data.

    Running hosts follow at once. Nothing becomes older: marks, slots and settings that are newer in ZooKeeper stay.
    Without --merge or --replace the command refuses a cluster that has shards, and shows how it differs.
    """
    from foqs.shardmgr.backup import decode_backup, plan_import
    from foqs.zk.inspect import read_backup

    section = cluster.section()
    quietly()
    try:
        text = sys.stdin.read() if file == _STREAM else file.read_text(encoding="utf-8")
        backup = decode_backup(text)
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{file}: not UTF-8") from None
    except Invalid as error:
        raise Invalid(f"{file}: {error.message}") from None
    if not backup.shards:
        raise Invalid(f"{file}: it has no shard")
    now = read_backup(section, timeout_s=cluster.connect_timeout)
    plan = plan_import(backup, now, frozenset(cluster.look().owners))
    for line in _first([f"+ {line}" for line in plan.adds]):
        print(line)
    for line in _first([f"{'~' if replace and not line.endswith('file') else '='} {line}" for line in plan.keeps]):
        print(line)
    if not plan.adds and not (replace and plan.replaces):
        print(f"the cluster at {section.root} has all of {file} already: nothing was written")
        return
    if dry_run:
        print("nothing was written (--dry-run)")
        return
    if now.shards and not (merge or replace):
        raise Invalid(
            f"the cluster at {section.root} has {counted(len(now.shards), 'shard')} already: nothing was written. "
            "--merge adds the lines with +; --replace also makes the records of shards as in the file"
        )
    confirm(f"Write this to ZooKeeper at {section.root}?", yes=yes)
    connected(section, cluster.connect_timeout, partial(_carry_out, plan, replace))
    print(f"imported into {section.root}; the hosts take over their shards (`foqs cluster status`)")


async def _carry_out(plan: Import, replace: bool, session: Cluster) -> None:
    from foqs.shardmgr.operate import Change

    await session.write_import(plan, plan.replaces if replace else ())
    shards = [fact.id for fact in (*plan.shards, *(plan.replaces if replace else ()))]
    audit(Change("cluster.import", "", "", None, {}, {"shards": shards, "records": len(plan.adds)}), True)


def _content(backup: Backup) -> str:
    settings = counted(len(backup.settings), "namespace")
    return f"{counted(len(backup.shards), 'shard')}, settings of {settings}"


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {counted(more, 'more line')} with {lines[-1][0]}"]
