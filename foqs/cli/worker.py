"""One of the hosts behind a port: `python -m foqs.cli.worker ID`, started by the supervisor of `foqs serve --workers`.

Its input is lines of JSON, {"config": ..., "shared_port": ...}: one at the start, and one for each change of live keys.
The worker stops when its input ends: the supervisor closes it, or has died. Its output is for the supervisor:
{"listening": "host:port"} or {"refused": "why"}, a line each. The worker ignores signals: a service manager sends them
to all processes at once, and then no worker would be left to take over shards.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from foqs.checks import host_port
from foqs.cli import logs
from foqs.cli.process import UNFINISHED, serve
from foqs.cli.reload import Apply, take
from foqs.config.load import Config
from foqs.errors import Invalid

_ORDERS, _ANSWERS = 0, 1
_READ_BYTES = 64 * 1024


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logs.from_environment()
    orders = _Orders()
    order = orders.first()
    if order is None:
        return  # the supervisor died before it wrote the line
    config = Config(**order["config"])
    logs.configure(config.log.level, config.log.format, worker=config.server.id)

    def when(stop: Callable[[], None], apply: Apply) -> None:
        orders.follow(config, stop, apply)

    try:
        if not serve(config, when, _listening, shared_port=order["shared_port"]):
            raise Invalid(UNFINISHED)
    except Invalid as error:
        _say("refused", error.message)
        raise SystemExit(1) from None


class _Orders:
    def __init__(self) -> None:
        self._read = b""

    def first(self) -> Any:
        """Wait for the first line; None if the input ends before."""
        while b"\n" not in self._read:
            if not self._more():
                return None
        return self._next()

    def follow(self, config: Config, stop: Callable[[], None], apply: Apply) -> None:
        """Apply further lines on the event loop, and call `stop` when the input ends."""
        loop = asyncio.get_running_loop()
        running = config

        def take_all() -> None:
            nonlocal running
            while b"\n" in self._read:
                running = take(running, Config(**self._next()["config"]), apply)

        def look() -> None:
            if not self._more():
                loop.remove_reader(_ORDERS)
                stop()
            take_all()

        take_all()
        loop.add_reader(_ORDERS, look)

    def _more(self) -> bool:
        read = os.read(_ORDERS, _READ_BYTES)
        self._read += read
        return bool(read)

    def _next(self) -> Any:
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)


def _listening(host: str, port: int) -> None:
    _say("listening", host_port(host, port))


def _say(what: str, text: str) -> None:
    with suppress(OSError):  # the supervisor has died, so the input ends as well
        os.write(_ANSWERS, json.dumps({what: text}).encode() + b"\n")


if __name__ == "__main__":
    main()
