"""SIGHUP: read the configuration again while the host or its workers serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from foqs.cli import logs, signals
from foqs.config.load import Config, NotValid, change
from foqs.errors import Invalid
from foqs.event_loop import on_daemon_thread

log = structlog.get_logger("foqs.config.load")

Read = Callable[[], Config]
Apply = Callable[[Config], None]


def on_hangup(running: Config, read: Read | None, apply: Apply) -> asyncio.Task[None]:
    """Read the configuration again at each SIGHUP. Keep the returned task.

    `read` returns the configuration or raises Invalid; None means that there is no file. `apply(config)` runs on the
    event loop with the new configuration. A configuration that is not valid changes nothing.
    """
    wanted = asyncio.Event()
    signals.on_hangup(wanted.set)

    async def follow() -> None:
        nonlocal running
        while True:
            await wanted.wait()
            wanted.clear()
            if read is None:
                log.error("config.not_reloaded", errors=["this host has no configuration file to read again"])
                continue
            try:
                # On a thread, because a disk may hang. A SIGHUP during the read causes another read.
                running = take(running, await on_daemon_thread(read, "foqs-reload"), apply)
            except NotValid as error:
                log.error("config.not_reloaded", errors=error.errors)
            except Invalid as error:
                log.error("config.not_reloaded", errors=[error.message])

    return asyncio.get_running_loop().create_task(follow())


def take(running: Config, read: Config, apply: Apply) -> Config:
    """Apply the live keys of `read`, log the changed keys, and return the new configuration. Raises NotValid."""
    changed = change(running, read)
    logs.set_level(changed.config.log.level)
    apply(changed.config)
    live, restart = list(changed.live), list(changed.restart)
    if restart:
        log.warning("config.partly_reloaded", changed=live, needs_restart=restart)
    else:
        log.info("config.reloaded", changed=live)
    return changed.config
