"""The process of `foqs push run`: follows the settings of some namespaces, and delivers to their targets."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import structlog

from foqs import __version__
from foqs.admin.exposition import Rows
from foqs.cli import logs, signals
from foqs.cli.metrics_port import serving
from foqs.cli.push_metrics import FAMILIES, STUCK_S, rows
from foqs.cli.push_secrets import SecretFiles
from foqs.cli.push_targets import Followed
from foqs.client import AsyncClient
from foqs.client.routes import parse_addresses
from foqs.config.load import Config, load
from foqs.errors import FoqsError, Forbidden, Invalid, Unauthenticated
from foqs.event_loop import on_daemon_thread
from foqs.policies.entries import PUSH
from foqs.push.addresses import Allow
from foqs.push.pusher import Pusher
from foqs.push.signing import Secrets

log = structlog.get_logger("foqs.push")

LOOK_S = 2.0
"""Between two looks at the settings and the files."""
TICK_S = 1.0
_HOPELESS = (Invalid, Unauthenticated, Forbidden)
"""Errors of the first look that no retry would cure."""


@dataclass(frozen=True)
class Order:
    """What a process does. `metrics`: the host and the port of /metrics and /healthz."""

    config: Path | None
    namespaces: Sequence[str]
    address: str
    token: str | None
    tls: str | None
    grace_ms: int
    metrics: tuple[str, int] | None = None
    until_input_ends: bool = False


def serve(order: Order) -> None:
    """Deliver until SIGTERM or SIGINT, or also until stdin ends. Raises Invalid, Unauthenticated and Forbidden for what
    no retry would cure at the start; SystemExit(1) if requests were given up at the end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default would end the process before its own handler is set
    if order.config is not None:
        logs.from_file(order.config)
    parse_addresses(order.address)
    config = read(order.config)
    logs.configure(config.log.level, config.log.format, folds=True)
    with signals.last_work(), ExitStack() as stack:
        process = Process(order, config)
        if order.metrics is not None:
            address = stack.enter_context(serving(*order.metrics, FAMILIES, process.rows, process.sick))
            log.info("pusher.metrics", address=address)
        asyncio.run(process.run())
    if process.given_up:
        raise SystemExit(1)


def read(path: Path | None) -> Config:
    """Return the configuration. Raises Invalid, also for exceptions of addresses that are wrong."""
    config = load(path)
    allowed(config)
    return config


def allowed(config: Config) -> Allow:
    """Return the exceptions. Raises Invalid."""
    try:
        return Allow.parse(config.push.allow)
    except Invalid as error:
        raise Invalid("\n".join(f"push.allow: {line}" for line in error.message.splitlines())) from None


class _Namespace(NamedTuple):
    client: AsyncClient
    pusher: Pusher
    followed: Followed


class Process:
    """From its start to its end. `served`: by namespace. `given_up`: requests that its end has cut off."""

    def __init__(self, order: Order, config: Config) -> None:
        self.served: dict[str, _Namespace] = {}
        self.given_up = 0
        self._order = order
        self._config = config
        self._allow = allowed(config)
        self._files = SecretFiles()
        self._secrets = Secrets()
        self._faults: Mapping[str, str] = {}
        self._stop = asyncio.Event()
        self._stops: set[asyncio.Task[None]] = set()
        self._beat_s = monotonic()

    def rows(self, now_s: float) -> Rows:
        """Return the metrics. Thread-safe."""
        return rows({ns: (one.pusher, one.followed) for ns, one in list(self.served.items())}, now_s)

    def sick(self, now_s: float) -> str:
        """Return the fault of the process; "" if it is healthy. An outage of the service is not its fault.
        Thread-safe."""
        silent_s = now_s - self._beat_s
        return f"the event loop has not run for {silent_s:.0f} s" if silent_s > STUCK_S else ""

    async def run(self) -> None:
        loop, order = asyncio.get_running_loop(), self._order
        logs.catch_faults(loop)
        signals.on_stop(self._asked)
        if order.until_input_ends:
            loop.add_reader(0, self._input_ended)
        tasks: list[asyncio.Task[Any]] = [
            signals.on_hangup(self._config, partial(read, order.config), self._apply),
            loop.create_task(self._tick()),
        ]
        try:
            await self._read_files()
            for ns in order.namespaces:
                client = self._client(ns)
                self.served[ns] = _Namespace(client, Pusher(client), Followed(ns))
            log.info(
                "pusher.running", namespaces=list(order.namespaces), address=order.address, grace_ms=order.grace_ms,
                version=__version__,
            )  # fmt: skip
            follows = [loop.create_task(self._follow(one)) for one in self.served.values()]
            tasks += [loop.create_task(self._follow_files()), *follows]
            tasks.append(stopped := loop.create_task(self._stop.wait()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._end(follows)
        finally:
            for task in tasks:
                task.cancel()
            for one in self.served.values():
                await one.client.close()
        for task in done - {stopped}:
            task.result()

    def _client(self, ns: str) -> AsyncClient:
        order = self._order
        return AsyncClient(
            order.address,
            ns,
            token=order.token,
            tls=order.tls,
            pool_size=0,  # each target has a long poll of its own
            program="push",
            on_retry=lambda _error, _left_s: None,
        )

    # ------------------------------------------------------------------------------------- settings and files

    async def _follow(self, one: _Namespace) -> None:
        """Raises what no retry would cure, at the first look."""
        while True:
            try:
                found = await one.client.settings(PUSH)
            except FoqsError as error:
                if one.followed.version is None and isinstance(error, _HOPELESS):
                    raise
                log.warning("pusher.settings_unread", ns=one.followed.ns, error=error.message)
            else:
                if one.followed.hear(found, monotonic()):
                    for name, why in one.followed.odd.items():
                        log.error("pusher.not_understood", ns=one.followed.ns, name=name, error=why)
                    self._deliver(one)
            await asyncio.sleep(LOOK_S)

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            before = self._secrets
            await self._read_files()
            if self._secrets != before:
                log.info("pusher.secrets_read", names=sorted(self._secrets.texts))
                self._deliver(*self.served.values())

    async def _read_files(self) -> None:
        paths = self._config.push.secrets
        self._secrets = Secrets(await on_daemon_thread(partial(self._files.refresh, paths), "foqs-secrets"))
        faults = self._files.faults
        for name in sorted(faults):
            if faults[name] != self._faults.get(name):
                log.error("pusher.secret_refused", name=name, error=faults[name], kept=name in self._secrets.texts)
        self._faults = faults

    def _apply(self, config: Config) -> None:
        """Take a configuration that was read again; its files follow with the next look at them."""
        self._config, self._allow = config, allowed(config)
        self._deliver(*self.served.values())

    def _deliver(self, *namespaces: _Namespace) -> None:
        if not self._stop.is_set():
            for one in namespaces:
                one.pusher.follow(one.followed.targets.values(), self._allow, self._secrets)

    async def _tick(self) -> None:
        while True:
            self._beat_s = monotonic()
            await asyncio.sleep(TICK_S)

    # ------------------------------------------------------------------------------------- its end

    def _asked(self) -> None:
        if self._stop.is_set():
            for one in self.served.values():
                task = asyncio.get_running_loop().create_task(one.pusher.stop(0))
                self._stops.add(task)
        self._stop.set()

    def _input_ended(self) -> None:
        """Nothing is written to the input."""
        asyncio.get_running_loop().remove_reader(0)
        self._stop.set()

    async def _end(self, follows: Sequence[asyncio.Task[None]]) -> None:
        self._stop.set()
        for task in follows:
            task.cancel()
        began, before = monotonic(), self._cut_off()
        pushers = [one.pusher for one in self.served.values()]
        in_flight = sum(pusher.meter.in_flight.total() for pusher in pushers)
        log.info("pusher.stopping", in_flight=in_flight, grace_ms=self._order.grace_ms)
        await asyncio.gather(*(pusher.stop(self._order.grace_ms) for pusher in pushers))
        self.given_up = self._cut_off() - before
        ends: Counter[str] = Counter()
        for pusher in pushers:
            for (_, outcome), count in pusher.meter.requests.items():
                ends[outcome] += count
        log.info(
            "pusher.stopped", took_ms=round((monotonic() - began) * 1000), acked=ends["ack"], failed=ends["fail"],
            released=ends["release"], rejected=ends["reject"], cut_off=ends["cut off"],
        )  # fmt: skip

    def _cut_off(self) -> int:
        meters = [one.pusher.meter.requests for one in self.served.values()]
        return sum(count for meter in meters for (_, outcome), count in meter.items() if outcome == "cut off")
