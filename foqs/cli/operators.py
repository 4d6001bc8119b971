"""The course of an operator's command.

It prints the change, asks before a change that cannot be undone, makes the change, and logs it for the audit. Then it
shows which steps are left until the hosts have finished them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from foqs.cli import logs
from foqs.cli.interrupt import run_on_loop
from foqs.cli.terminal import waiting
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.config.load import Config
    from foqs.config.schema import ZookeeperSection
    from foqs.shardmgr.facts import Facts
    from foqs.shardmgr.operate import Change
    from foqs.zk.session import Cluster

T = TypeVar("T")


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

    def load(self) -> Config:
        """Return the configuration. Raises Invalid."""
        from foqs.config.load import load

        return load(self.config)

    def placed(self, url: str) -> str:
        """Return a shard's URL with the folder of its password file on this machine. Raises Invalid."""
        from foqs.store.passwords import placed

        return placed(url, self.load().store.secrets_dir)

    def section(self) -> ZookeeperSection:
        """Return the section of the cluster. Raises Invalid, too, for the configuration of a single host."""
        return section_of(self.load())

    def look(self) -> Facts:
        """Return the current facts. Raises Invalid, Unavailable."""
        return look(self.section(), self.connect_timeout)


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


def section_of(config: Config) -> ZookeeperSection:
    if config.zookeeper is None:
        raise Invalid("the configuration has no [zookeeper] section: this command needs a cluster")
    return config.zookeeper


def look(section: ZookeeperSection, connect_s: float) -> Facts:
    """Return the current facts. Raises Unavailable."""

    async def facts(cluster: Cluster) -> Facts:
        return cluster.facts

    return connected(section, connect_s, facts)


def connected(section: ZookeeperSection, connect_s: float, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Return what `work` returns for a connected cluster. Raises Unavailable, and what `work` raises."""
    from foqs.zk.session import Cluster

    async def run() -> T:
        async with Cluster(section, connect_s) as cluster:
            return await work(cluster)

    quietly()
    return run_on_loop(run())


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
    section = cluster.section()
    said: str | None = None

    def decide_and_say(facts: Facts) -> Change:
        """Print the change unless the same words were printed before."""
        nonlocal said
        change = decide(facts)
        if change.says != said:
            print(change.says)
            show_moves(change)
            sys.stdout.flush()
            said = change.says
        return change

    async def carry_out(session: Cluster) -> None:
        if then is not None:
            await then(session)
        change = await session.carry_out(decide_and_say, audit)
        if not wait.no_wait:
            with waiting() as progress:
                await session.until(change.missing, wait.timeout, progress)
            print(change.then)

    if first is not None:
        decide_and_say(look(section, cluster.connect_timeout))
        first()
    connected(section, cluster.connect_timeout, carry_out)


def show_moves(change: Change) -> None:
    from foqs.checks import printable as name

    for shard, source, target in change.moves:
        print(f"shard {shard}: {'nowhere' if source is None else name(source)} -> {name(target)}")


def audit(change: Change, certain: bool) -> None:
    """Log the change, whatever FOQS_LOG__LEVEL is."""
    audit_change(change.what, change.before, change.after, "made" if certain else "unknown")


def audit_change(what: str, before: Mapping[str, object], after: Mapping[str, object], outcome: str = "made") -> None:
    from foqs.zk.session import audit_change as write

    write(_who(), what, before, after, outcome)


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


def confirm(question: str, *, yes: bool, why: str = "this cannot be undone") -> None:
    """Ask for confirmation. Raises Invalid, which says why it is needed, without a terminal; Abort for no."""
    if not yes:
        _needs_terminal(why)
        typer.confirm(question, abort=True)


def confirm_by_name(name: str, to: str, *, yes: bool) -> None:
    """Ask for `name` to be typed. Raises Invalid without a terminal or for another text."""
    if not yes:
        _needs_terminal()
        if typer.prompt(f"Type {name} to {to}", default="", show_default=False).strip() != name:
            raise Invalid(f"this is not {name}: nothing was changed")


def _needs_terminal(why: str = "this cannot be undone") -> None:
    if not sys.stdin.isatty():
        raise Invalid(f"{why}, and no terminal is there to confirm it: give --yes")
