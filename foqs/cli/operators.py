"""The course of an operator's command.

It prints the change, asks before a change that cannot be undone, makes the change, and logs it for the audit. Then it
shows which steps are left until the hosts have finished them.

Questions before a change that cannot be undone.

What a shard's database keeps of settings and deduplication slots, and its way into a cluster.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli import logs
from foqs.errors import Conflict, Invalid
from foqs.shardmgr.facts import ShardFact

if TYPE_CHECKING:
    from foqs.cli.session import Cluster
    from foqs.config.load import Config
    from foqs.config.schema import ZookeeperSection
    from foqs.policies.settings import Settings
    from foqs.shardmgr.facts import Facts
    from foqs.shardmgr.operate import Change
    from foqs.store.maintenance import Kept


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises Invalid without a terminal, Abort for no."""
    if not yes:
        _needs_terminal()
        typer.confirm(question, abort=True)


def confirm_by_name(name: str, to: str, *, yes: bool) -> None:
    """Ask for `name` to be typed. Raises Invalid without a terminal or for another text."""
    if not yes:
        _needs_terminal()
        if typer.prompt(f"Type {name} to {to}", default="", show_default=False).strip() != name:
            raise Invalid(f"this is not {name}: nothing was changed")


def _needs_terminal() -> None:
    if not sys.stdin.isatty():
        raise Invalid("this cannot be undone, and no terminal is there to confirm it: give --yes")


MOST_S = 1_000_000
"""The longest wait of a command."""
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="FOQS_CONFIG", help="The configuration is in this foqs.toml.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="The command does not ask for confirmation.")]
TIMEOUT_S = 120.0
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a command that reads or changes a cluster."""

    config: ConfigOption
    connect_timeout: Annotated[
        float,
        typer.Option(min=0.1, max=MOST_S, help="The command waits this many seconds for ZooKeeper to answer."),
    ] = CONNECT_S

    def look(self) -> Facts:
        """Return the current facts. Raises Invalid, Unavailable."""
        from foqs.config.load import load

        return look(cluster_of(load(self.config)), self.connect_timeout)


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """The options of a change whose effect the command waits for."""

    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="The command returns once the change is recorded, and before hosts act on it."),
    ] = False
    timeout: Annotated[
        float,
        typer.Option(
            min=0, max=MOST_S, help="The command waits this many seconds for the hosts to finish; 0: it looks once."
        ),
    ] = TIMEOUT_S


DEFAULT_WAIT = WaitOptions()


def cluster_of(config: Config) -> ZookeeperSection:
    """Return the section of the cluster. Raises Invalid for the configuration of a single host."""
    if config.zookeeper is None:
        raise Invalid("the configuration has no [zookeeper] section: this command needs a cluster")
    return config.zookeeper


def look(config: ZookeeperSection, connect_s: float) -> Facts:
    """Return the current facts. Raises Unavailable."""
    import asyncio

    from foqs.cli.session import Cluster

    async def work() -> Facts:
        async with Cluster(config, connect_s) as cluster:
            return cluster.facts

    quietly()
    return asyncio.run(work())


def perform(
    cluster: ClusterOptions,
    decide: Callable[[Facts], Change],
    wait: WaitOptions = DEFAULT_WAIT,
    *,
    first: Callable[[], None] | None = None,
    then: Callable[[Cluster], Awaitable[None]] | None = None,
) -> None:
    """Make a change to a cluster.

    `first` runs after the change is printed and before it is made: it asks a question, or creates a schema. `decide`
    runs again afterwards, because `first` may take long. `then` makes other changes to the cluster right before. Raises
    what `decide`, `first` and `then` raise, Invalid, Unavailable, Forbidden, NotDone.
    """
    import asyncio

    from foqs.config.load import load

    config = cluster_of(load(cluster.config))
    said: str | None = None
    if first is not None:
        said = _say(decide(look(config, cluster.connect_timeout)), None)
        first()
    quietly()
    timeout_s = None if wait.no_wait else wait.timeout
    asyncio.run(_perform(config, decide, cluster.connect_timeout, timeout_s, said, then))


async def _perform(
    config: ZookeeperSection,
    decide: Callable[[Facts], Change],
    connect_s: float,
    timeout_s: float | None,
    said: str | None,
    then: Callable[[Cluster], Awaitable[None]] | None,
) -> None:
    from foqs.cli.session import Cluster

    def decide_and_say(facts: Facts) -> Change:
        nonlocal said
        change = decide(facts)
        said = _say(change, said)
        return change

    async with Cluster(config, connect_s) as cluster:
        if then is not None:
            await then(cluster)
        change = await cluster.carry_out(decide_and_say, audit)
        if timeout_s is not None:
            with _progress() as progress:
                await cluster.until(change.missing, timeout_s, progress)
            print(change.then)


def show_moves(change: Change) -> None:
    from foqs.shardmgr.operate import name

    for shard, source, target in change.moves:
        print(f"shard {shard}: {'nowhere' if source is None else name(source)} -> {name(target)}")


def _say(change: Change, said: str | None) -> str:
    """Print the change unless the same words were printed before."""
    if change.says != said:
        print(change.says)
        show_moves(change)
        sys.stdout.flush()
    return change.says


def audit(change: Change, certain: bool) -> None:
    """Log the change, whatever FOQS_LOG__LEVEL is."""
    import logging

    import structlog

    always = structlog.make_filtering_bound_logger(logging.INFO)
    log = structlog.wrap_logger(logs.Stderr("foqs.audit"), wrapper_class=always)
    outcome = "made" if certain else "unknown"
    before, after = dict(change.before), dict(change.after)
    log.info("audit.change", what=change.what, who=_who(), before=before, after=after, outcome=outcome)


def _who() -> str:
    """Return the account that runs the command, from the system: the environment can be set to anything."""
    import pwd
    import socket

    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = f"uid {number}"
    return f"{user}@{socket.gethostname()}"


def quietly() -> None:
    """Log errors only: the command itself reports the outcome of connections and retries."""
    logs.from_environment("error")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the steps that are left on stderr: one changing line on a terminal, else a line for each change."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        yield lambda words: print(f"waiting: {words}", file=sys.stderr, flush=True)
        return
    with console.status("waiting") as status:
        yield lambda words: status.update(console.render_str(f"waiting: {words}"))


def copies_of(kept: Kept) -> list[Settings]:
    """Return the copies that can be read. Raises Invalid for one that cannot."""
    from foqs.policies.settings import decode

    return [decode(row.ns.decode(), row.doc) for row in kept.settings if row.ns]


def remove_copies(url: str, shard: int, namespaces: Collection[str] | None = None) -> None:
    """Remove the copies of `namespaces` (None: of all) from a shard's database. Raises StoreError."""
    from foqs.store.maintenance import discard_settings, read_kept

    names = list(namespaces) if namespaces is not None else [row.ns.decode() for row in read_kept(url, shard).settings]
    discard_settings(url, shard, names)


async def adopt_kept(cluster: Cluster, fact: ShardFact) -> None:
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
