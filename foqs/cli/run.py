"""`foqs dev`, `foqs serve` and `foqs demo`: the commands that run hosts, and processes around them.

The commands import the modules of the server and of the laboratory themselves, so that `foqs` starts fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer

from foqs.bounds import CONSOLE_PORT, DEFAULT_PORT, MOST_PORT
from foqs.cli import logs
from foqs.cli.interrupt import ends_at_once
from foqs.cli.main import command
from foqs.cli.operators import ConfigOption
from foqs.cli.terminal import fail
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.config.load import Config

HostOption = Annotated[str | None, typer.Option(help="The host listens on this address. Default: 127.0.0.1.")]
MOST_PROCESSES = 64
_MOST_DEMO_WORKERS = 8
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PortOption = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_PORT, help=f"The host listens on this port; 0 picks one. Default: {DEFAULT_PORT}."),
]


app = typer.Typer()


@command(app, "foqs dev", "foqs dev --port 7800 --data-dir /tmp/queue", "foqs dev --push --push-config push.toml")
def dev(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: Annotated[Path, typer.Option(help="The SQLite shards are in this folder.")] = Path("foqs-data"),
    shards: Annotated[int, typer.Option(min=1, max=64, help="A new folder gets this many shards.")] = 4,
    console: Annotated[
        bool, typer.Option("--console", help="The command runs the web console as well (see `foqs console`).")
    ] = False,
    console_port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="The console listens on this port; 0 picks one.")
    ] = CONSOLE_PORT,
    push: Annotated[
        bool, typer.Option("--push", help="The command sends items to HTTP endpoints as well (see `foqs push run`).")
    ] = False,
    push_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The secrets and exceptions of --push are in this foqs.toml."),
    ] = None,
) -> None:
    """Run a host on embedded SQLite shards, without any other server.

    Items survive a restart.
    """
    if push_config is not None and not push:
        raise Invalid("--push-config needs --push")
    with ends_at_once():
        import structlog

        from foqs.cli.host import dev_shards, run
        from foqs.config.load import load
        from foqs.folders import held_folder
        from foqs.store.maintenance import create_schema

        sections = dev_shards(data_dir, shards)
        with held_folder(data_dir, "--data-dir", "dev"):
            shards_of = [section.model_dump() for section in sections]
            config = load(**_server(host, port), shards=shards_of, store={"state_dir": data_dir.resolve()})
            for section in config.shards:
                create_schema(section.url, section.id)
            logs.configure(config.log.level, config.log.format, folds=True)
            log = structlog.get_logger("foqs.host")
            log.info("dev.data", directory=str(data_dir), shards=len(config.shards))
            beside: list[list[str]] = []
            if console:
                import foqs.cli.console_process  # noqa: F401 - without its packages nothing starts

                beside.append(["console", "--port", str(console_port)])
            if push:
                from foqs.cli.push_process import read

                read(push_config)
                file = [] if push_config is None else ["--config", str(push_config)]
                beside.append(["push", "run", "--grace-ms", "0", *file])
            with _Beside(beside) as clients:
                run(config, None, take_over=False, ready=clients.begin)


class _Beside:
    """Clients of `foqs dev` in processes of their own. They end with their inputs, so also when this process is
    killed."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, address: str) -> None:
        for words in self._commands:
            argv = [sys.executable, "-m", "foqs", *words, "--address", address, "--until-input-ends"]
            self._processes.append(subprocess.Popen(argv, stdin=subprocess.PIPE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
        for process in self._processes:
            process.wait()


@command(app, "foqs serve --config foqs.toml", "foqs serve --config foqs.toml --processes 4")
def serve(
    config: ConfigOption,
    host: HostOption = None,
    port: PortOption = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="The host takes its shards even from a living or frozen owner, which loses them."
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PROCESSES,
            help="In a cluster, this many hosts share the port. Each is a process with a port of its own (the port "
            "+ 1, + 2, ...) and is restarted when it dies.",
        ),
    ] = None,
) -> None:
    """Run a host over the shards of foqs.toml, or as a host of a cluster.

    Without a [zookeeper] section, the host serves the [[shards]] of foqs.toml. While another host owns them, it waits
    as a standby. With that section, it joins the cluster.
    """
    with ends_at_once():
        _serve(config, host, port, take_over, processes)


def _serve(path: Path, host: str | None, port: int | None, take_over: bool, processes: int | None) -> None:
    from foqs.config.load import load

    logs.from_file(path)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default would end the host before its own handler is set

    def read() -> Config:
        return _with_state(named(load(path, **_server(host, port))), path)

    settings = read()
    logs.configure(settings.log.level, settings.log.format, folds=True)
    if settings.zookeeper is None:
        if processes is not None:
            raise Invalid(
                "--processes: there is no [zookeeper] section, and only hosts of a cluster share a port: add one"
            )
        if not settings.shards:
            raise Invalid("the configuration has neither [[shards]] nor [zookeeper]: add one of them")
    elif take_over:
        raise Invalid("--take-over: in a cluster, `foqs shards move` moves a shard to another host: omit --take-over")
    _warn(settings)
    if processes is not None:
        from foqs.cli.supervisor import supervise

        supervise(settings, processes, read)
    else:
        from foqs.cli.host import run

        run(settings, read, take_over=take_over)


def _warn(config: Config) -> None:
    import structlog

    from foqs.config.access import exposed

    log = structlog.get_logger("foqs.host")
    for words in exposed(config).values():
        log.warning("host.not_secure", listens_on=config.server.host, why=words)


def named(config: Config) -> Config:
    """Name a host of a cluster after its machine and port if the configuration names none: unique, and lasting."""
    if config.zookeeper is None or "id" in config.server.model_fields_set:
        return config
    import socket

    name = f"{socket.gethostname()}:{config.server.port or os.getpid()}"
    return config.model_copy(update={"server": config.server.model_copy(update={"id": name})})


def _with_state(config: Config, file: Path) -> Config:
    if config.zookeeper is not None or config.store.state_dir is not None:
        return config
    state_dir = file.resolve().parent / "foqs-state"
    return config.model_copy(update={"store": config.store.model_copy(update={"state_dir": state_dir})})


def _server(host: str | None, port: int | None) -> dict[str, Any]:
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    return {"server": given} if given else {}


# ------------------------------------------------------------------------------------------------ the laboratory


@command(app, "foqs demo", "foqs demo --workers 4 --files 200")
def demo(
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="This many processes do the work. Default: one for each processor, 2 to 8."),
    ] = None,
    files: Annotated[
        int | None,
        typer.Option(min=10, help="The demo reads this many files, from small to large. Default: all."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="The command keeps the shards and the logs.")] = False,
) -> None:
    """Show foqs at work: count Python's standard library with a pool of workers.

    Each .py file becomes an item of an embedded queue; the smallest file is the most urgent. Worker processes parse
    the files and count functions, classes and lines. A few items fail once, and one worker is killed at work.

    At the end the totals must equal the totals of a plain loop over the same files, and the queue must be empty.
    """
    from rich.console import Console

    from foqs_lab.demo.crew import DemoFailed
    from foqs_lab.demo.screen import Screen, show
    from foqs_lab.demo.story import Plan, run

    plan = Plan(workers or max(2, min(_MOST_DEMO_WORKERS, os.cpu_count() or 2)), files, keep)
    try:
        with interruptible(), Screen() as screen:
            outcome = run(plan, screen)
    except DemoFailed as error:
        if error.log_tail:
            print(error.log_tail, file=sys.stderr)
        fail(f"the demo failed: {error}")
    console = Console(highlight=False)
    show(outcome, console)
    if problems := outcome.problems():
        fail("the demo failed:\n  " + "\n  ".join(problems))
    console.print("[green]Every file was counted once, as in the plain loop, and the queue is empty.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal, and ignore later ones until the process ends.

    A later signal must not stop the command from ending the processes it started, nor from reporting the interrupt.
    """

    def interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupted:
                signal.signal(number, handler)
