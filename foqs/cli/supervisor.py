"""`foqs serve --processes N`: N hosts behind one port, each a process that is restarted when it dies.

The processes (`foqs.cli.host`) serve; this process imports nothing of a host.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import structlog

from foqs.bounds import MOST_PORT
from foqs.checks import counted, host_port
from foqs.cli import logs, signals
from foqs.cli.keeper import END_S, Keeper
from foqs.cli.signals import Read, on_hangup
from foqs.config.load import Config
from foqs.errors import Invalid

log = structlog.get_logger("foqs.processes")


def supervise(config: Config, processes: int, read: Read) -> None:
    """Run the processes until SIGTERM or SIGINT; SIGHUP reloads their configuration.

    Raises Invalid for permanent errors, and if a process did not stop in order.
    """
    server = config.server
    if server.port and server.port + processes > MOST_PORT:
        raise Invalid(
            f"--processes: there are no {processes} ports above {server.port}: lower server.port or --processes"
        )
    if server.advertise is not None and not server.port:
        raise Invalid(
            "server.advertise: with --processes, set server.port too: each process advertises a port above it"
        )
    logs.set_level(config.log.level)
    with signals.last_work(), _held(server.host, server.port) as port:
        asyncio.run(_Supervisor(config, processes, port).run(read))


def config_of(config: Config, number: int) -> Config:
    """Return the configuration of process `number`, from 1: its id, direct port, admin port and advertised address."""
    server = config.server
    if server.port and server.port + number > MOST_PORT:
        raise Invalid(f"server.port: it needs {counted(number, 'port')} above {server.port} for --processes: lower it")
    changes: dict[str, object] = {"id": f"{server.id}-{number}", "port": server.port and server.port + number}
    if server.advertise is not None:
        name, _, port = server.advertise.rpartition(":")
        if not name or not port.isdecimal() or int(port) + number > MOST_PORT:
            raise Invalid(
                f"server.advertise: {server.advertise} is not host:port with a port below {MOST_PORT - number + 1}"
            )
        changes["advertise"] = f"{name}:{int(port) + number}"
    admin = config.admin
    if admin.port:
        if admin.port + number > MOST_PORT:
            needed = counted(number, "port")
            raise Invalid(f"admin.port: it needs {needed} above {admin.port} for --processes: lower it")
        admin = admin.model_copy(update={"port": admin.port + number})
    return config.model_copy(update={"server": server.model_copy(update=changes), "admin": admin})


@contextmanager
def _held(host: str, port: int) -> Iterator[int]:
    """Hold the port (0 picks one) for the processes, even while none of them listens."""
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                # A shared bind does not fail if another process shares the port, so bind it alone first.
                with _bound(family, (address[0], port, *address[2:]), shared=False) as alone:
                    port = alone.getsockname()[1]
                stack.enter_context(_bound(family, (address[0], port, *address[2:]), shared=True))
        except OSError as error:
            raise Invalid(f"cannot listen on {host_port(host, port)}: {error.strerror}") from error
        yield port


def _bound(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.bind(address)
    except OSError:
        held.close()
        raise
    return held


class _Supervisor:
    def __init__(self, config: Config, processes: int, port: int) -> None:
        self._config = config
        self._port = port
        self._keepers = []
        for number in range(1, processes + 1):
            name = config_of(config, number).server.id
            self._keepers.append(Keeper(name, ("foqs.cli.host", name), partial(self._heard, name)))
        self._reconfigure(config)
        self._quiet = {keeper.name for keeper in self._keepers}  # have not listened yet

    async def run(self, read: Read) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        logs.catch_faults(loop)
        signals.on_stop(stop.set)
        reloading = on_hangup(self._config, read, self._reconfigure)
        stopping = loop.create_task(stop.wait())
        tasks = [loop.create_task(keeper.run()) for keeper in self._keepers]
        await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        reloading.cancel()
        log.info("processes.stopping", processes=len(tasks), grace_ms=self._config.server.grace_ms)
        for keeper in self._keepers:
            if keeper.name in self._quiet:  # it has no shards to hand over
                keeper.stop()
        for keeper, task in zip(
            self._keepers, tasks, strict=True
        ):  # one at a time: the other processes take its shards
            keeper.stop()
            await asyncio.wait({task})
        faults = [fault for task in tasks if (fault := task.exception()) is not None]
        if faults:
            raise faults[0]

    def _reconfigure(self, config: Config) -> None:
        """Pass the common configuration to the processes."""
        patience_s = 2 * config.server.grace_ms / 1000 + END_S  # hand over the shards, then finish the requests
        # The format of what a process says before it has read its order.
        environment = {"FOQS_LOG__FORMAT": config.log.format}
        for number, keeper in enumerate(self._keepers, 1):
            own = config_of(config, number).model_dump(mode="json")
            keeper.give({"config": own, "shared_port": self._port}, patience_s, environment)

    def _heard(self, process: str, said: Mapping[str, Any]) -> None:
        if "listening" not in said:
            return
        log.info("process.listening", process=process, address=said["listening"])
        if process in self._quiet:
            self._quiet.remove(process)
            if not self._quiet:
                address, processes = host_port(self._config.server.host, self._port), len(self._keepers)
                logs.announce(
                    f"foqs listening on {address} ({processes} processes)", address=address, processes=processes
                )
