"""`foqs dev` and `foqs serve`: the serving side of the command line.

What serves is imported inside the commands: `foqs ack` in a pipe should not wait for it.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from foqs.cli import logs
from foqs.cli.errors import told
from foqs.cli.interrupt import ends_at_once
from foqs.cli.operators import ConfigOption
from foqs.errors import Invalid
from foqs.exposure import exposed

if TYPE_CHECKING:
    from foqs.config import Config
    from foqs.sections import ShardSection

log = structlog.get_logger("foqs.host")

HostOption = Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")]
MOST_WORKERS = 64
PortOption = Annotated[int | None, typer.Option(help="Port to listen on; 0 picks one. Default: 7707.")]


def register(app: typer.Typer) -> None:
    app.command()(dev)
    app.command()(serve)


@told
def dev(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: Annotated[Path, typer.Option(help="Where the SQLite shards are kept.")] = Path("foqs-data"),
    shards: Annotated[int, typer.Option(min=1, max=64, help="How many shards to begin with.")] = 4,
) -> None:
    """Runs foqs on embedded SQLite shards: no other server is needed, and items survive a restart."""
    with ends_at_once():
        from foqs.cli.process import dev_shards, run
        from foqs.config import load
        from foqs.store.schema import create_schema

        sections = dev_shards(data_dir, shards)
        shards_of = [section.model_dump() for section in sections]
        config = load(**_server(host, port), shards=shards_of, store={"state_dir": data_dir.resolve()})
        for section in config.shards:
            create_schema(section.url, section.id)
        logs.configure(config.log.level, config.log.format)
        log.info("dev.data", directory=str(data_dir), shards=len(config.shards))
        run(config, None, take_over=False)


@told
def serve(
    config: ConfigOption,
    host: HostOption = None,
    port: PortOption = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take shards from a living or frozen owner (it loses them).")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_WORKERS,
            help="In a cluster: so many hosts behind the port, each a process with a port of its own (the port + 1, "
            "+ 2, ...), started again when it dies.",
        ),
    ] = None,
) -> None:
    """Runs a host: over the shards of foqs.toml, waiting as a standby while another host has them, or, with a
    zookeeper section, as a host of that cluster."""
    with ends_at_once():
        _serve(config, host, port, take_over, workers)


def _serve(path: Path, host: str | None, port: int | None, take_over: bool, workers: int | None) -> None:
    from foqs.config import load

    logs.from_file(path)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # or one that comes before it can be heeded ends the host

    def read() -> Config:
        return _with_state(named(load(path, **_server(host, port))), path)

    settings = read()
    logs.configure(settings.log.level, settings.log.format)
    if settings.zookeeper is None:
        if workers is not None:
            raise Invalid("--workers: only hosts of a cluster can share a port, and there is no [zookeeper] section")
        _some_shards(settings)
    elif take_over:
        raise Invalid("--take-over: in a cluster the assignment says who has a shard")
    _warn(settings)
    if workers is not None:
        from foqs.cli.supervisor import supervise

        supervise(settings, workers, read)
    else:
        from foqs.cli.process import run

        run(settings, read, take_over=take_over)


def _warn(config: Config) -> None:
    for words in exposed(config).values():
        log.warning("host.not_secure", listens_on=config.server.host, why=words)


def named(config: Config) -> Config:
    """Hosts of a cluster need ids of their own, and the same one after a restart: the machine's name and the port."""
    if config.zookeeper is None or "id" in config.server.model_fields_set:
        return config
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


def _some_shards(config: Config) -> tuple[ShardSection, ...]:
    if config.zookeeper is not None:
        raise Invalid("zookeeper: the shards are the cluster's; this is for [[shards]]")
    if not config.shards:
        raise Invalid("no [[shards]] in the configuration")
    return config.shards
