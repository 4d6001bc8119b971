"""The checks of `foqs shards set-url`: a new URL must lead to the same shard, and the account must have the rights."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from foqs.checks import PASSWORD_FILE, counted
from foqs.cli.operators import ClusterOptions, confirm, connected
from foqs.errors import Invalid
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.ids import Marks
    from foqs.shardmgr.facts import ShardFact
    from foqs.store.maintenance import Standing
    from foqs.zk.session import Cluster


def given_url(url: str) -> str:
    """Return the argument, or the line on stdin for `-`. Raises Invalid."""
    if url == "-":
        url = sys.stdin.readline().removeprefix("\ufeff").strip()
    if not url:
        raise Invalid(
            "the URL of the shard's database is empty: give it as the second argument, or a line on stdin for -"
        )
    return url


def refuse_password(cluster: ClusterOptions, url: str) -> None:
    """Keep passwords out of ZooKeeper where they are in files. Raises Invalid."""
    from foqs.checks import shard_url_fault
    from foqs.store.passwords import has_password

    if (fault := shard_url_fault(url)) is not None:
        raise Invalid(fault)
    if has_password(url) and cluster.load().store.secrets_dir is not None:
        raise Invalid(
            "the URL has a password, and with store.secrets_dir passwords are in files: write it into a file of that "
            f"folder on all hosts, and end the URL with ?{PASSWORD_FILE}=NAME"
        )


def check_url(cluster: ClusterOptions, before: ShardFact, url: str, *, yes: bool) -> None:
    """Check the database at the new URL, and ask before a change that may lose items. Raises Invalid."""
    number = before.id
    _refuse_faults(cluster, number, url)
    new = _standing(cluster, number, url)
    if new.read_only:
        raise _refused(number, "the database is read-only: promote the replica first")
    try:
        old = _standing(cluster, number, before.url)
    except StoreError as error:
        old = None
        print(f"the database at the present URL cannot be read: {explained(error)}", flush=True)

    async def marks(session: Cluster) -> Marks:
        return await session.marks(number)

    if asked := questions(number, old, new, connected(cluster.section(), cluster.connect_timeout, marks)):
        for question in asked:
            print(f"warning: {question}", flush=True)
        confirm(f"Change the URL of shard {number}?", yes=yes)


def _standing(cluster: ClusterOptions, number: int, url: str) -> Standing:
    from foqs.store.maintenance import read_standing

    return read_standing(cluster.placed(url), number)


def _refuse_faults(cluster: ClusterOptions, number: int, url: str) -> None:
    from foqs.store.checkup import check_shard

    findings = check_shard(cluster.placed(url), number).findings
    if wrong := [f"{one.found} -> {one.mend}" if one.mend else one.found for one in findings if one.wrong]:
        raise _refused(number, "; ".join(wrong))


def questions(number: int, old: Standing | None, new: Standing, marks: Marks) -> list[str]:
    """Return what to ask the operator. `old` is None if the present database cannot be read; then the marks in
    ZooKeeper know the shard. Raises Invalid for another shard's database."""
    if old is not None and old.identity != new.identity:
        raise _refused(
            number,
            f"the database is another copy of a shard with that number (identity {new.identity or 'none'}, not "
            f"{old.identity or 'none'}): restore or replicate the shard there",
        )
    if old is not None and old.place == new.place:
        return []
    asked = []
    if old is not None and not old.read_only:
        asked.append(
            "The database at the present URL still takes writes: what hosts commit there until they have switched, and "
            "the new database does not get, is lost. Best disable the shard, or make that database read-only, first."
        )
    mark = marks.get(new.identity)
    if mark is None and old is None:
        raise _refused(
            number,
            f"nothing shows that the database is this shard's: ZooKeeper has no mark of its identity "
            f"{new.identity or 'none'}. --no-check changes the URL nevertheless",
        )
    if mark is not None and new.behind(mark):
        commits, items = max(0, mark.seq - new.seq), max(0, mark.number - new.number)
        asked.append(
            f"The new database is an older copy: {counted(commits, 'commit')} and {counted(items, 'new item')} or more "
            f"are missing (it is at commit {new.seq:,} and item {new.number:,}, and hosts were at {mark.seq:,} and "
            f"{mark.number:,}). "
            "Missing items are lost, and the host ends all leases of the copy."
        )
    return asked


def _refused(number: int, why: str) -> Invalid:
    return Invalid(f"the URL of shard {number} is not changed: {why}")
