"""`foqs serve --processes N`: N hosts behind one port, each a process that is restarted when it dies.

The processes (`foqs.cli.host`) serve; this process imports nothing of a host.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import structlog

from foqs.bounds import MOST_PORT
from foqs.checks import host_port
from foqs.cli import logs, signals
from foqs.cli.signals import Read, on_hangup
from foqs.config.load import Config
from foqs.errors import Invalid

log = structlog.get_logger("foqs.processes")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0  # uptime after which a crash is not a start-up failure
_END_S = 5.0  # beyond the grace: closing databases and the session


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
        raise Invalid(f"server.port: there are no {number} ports above {server.port} for --processes: lower it")
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
            raise Invalid(f"admin.port: there are no {number} ports above {admin.port} for --processes: lower it")
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
        self._address = host_port(config.server.host, port)
        self._keepers = [_Keeper(config, number, port, self._listens) for number in range(1, processes + 1)]
        self._quiet = {keeper.id for keeper in self._keepers}  # have not listened yet

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
        log.info("processes.stopping", processes=len(tasks))
        for keeper in self._keepers:
            if keeper.id in self._quiet:  # it has no shards to hand over
                keeper.stop.set()
        for keeper, task in zip(
            self._keepers, tasks, strict=True
        ):  # one at a time: the other processes take its shards
            keeper.stop.set()
            await asyncio.wait({task})
        faults = [fault for task in tasks if (fault := task.exception()) is not None]
        if faults:
            raise faults[0]

    def _reconfigure(self, config: Config) -> None:
        for keeper in self._keepers:
            keeper.reconfigure(config)

    def _listens(self, process: str) -> None:
        if process in self._quiet:
            self._quiet.remove(process)
            if not self._quiet:
                processes = len(self._keepers)
                logs.announce(
                    f"foqs listening on {self._address} ({processes} processes)",
                    address=self._address,
                    processes=processes,
                )


class _Keeper:
    """A loop that keeps one process running until `stop` is set."""

    def __init__(self, config: Config, number: int, shared_port: int, listens: Callable[[str], None]) -> None:
        self.stop = asyncio.Event()
        self._number = number
        self._shared_port = shared_port
        self._listens = listens
        self._refused: str | None = None
        self._input: asyncio.StreamWriter | None = None
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Pass the common configuration to the running process and its successors."""
        config = config_of(config, self._number)
        self.id = config.server.id
        self._format = config.log.format  # of what a process says before it has read its order
        order = {"config": config.model_dump(mode="json"), "shared_port": self._shared_port}
        self._order = json.dumps(order).encode() + b"\n"
        self._patience_s = 2 * config.server.grace_ms / 1000 + _END_S  # hand over the shards, then finish the requests
        if self._input is not None and not self._input.is_closing():
            self._input.write(self._order)

    async def run(self) -> None:
        """Start the process again after each death. Raises Invalid for a permanent error, and after a stop by force."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while not self.stop.is_set():
            began = loop.time()
            status = await self._once()
            if self._refused is not None:
                raise Invalid(f"process {self.id}: {self._refused}")
            if self.stop.is_set():
                if status:
                    raise Invalid(f"process {self.id} did not stop in order: status {status}")
                return
            if loop.time() - began >= _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            log.warning("process.died", process=self.id, status=status, again_ms=int(pause_s * 1000))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.stop.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _once(self) -> int | str:
        """Run the process once. Return its exit status (negative: a signal), or the reason if it could not start."""
        argv = (sys.executable, "-m", "foqs.cli.host", self.id)
        # A group of its own: Ctrl-C in a terminal is for the supervisor.
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=PIPE, stdout=PIPE, process_group=0, env={**os.environ, "FOQS_LOG__FORMAT": self._format}
            )
        except OSError as error:  # out of memory or processes: retry later
            return str(error)
        log.info("process.started", process=self.id, pid=process.pid)
        assert process.stdin is not None
        process.stdin.write(self._order)
        self._input = process.stdin
        ended = asyncio.ensure_future(self._hear(process))
        stop = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        process.stdin.close()
        await asyncio.wait({ended}, timeout=self._patience_s)
        if not ended.done():
            with suppress(ProcessLookupError):  # it ended in between
                process.kill()
        return await ended

    async def _hear(self, process: Process) -> int:
        assert process.stdout is not None
        async for line in process.stdout:
            said = json.loads(line)
            if "listening" in said:
                log.info("process.listening", process=self.id, address=said["listening"])
                self._listens(self.id)
            self._refused = said.get("refused")
        return await process.wait()
