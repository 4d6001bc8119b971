"""SIGHUP: the configuration is read again while its host, or its workers, serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from foqs.cli import logs, signals
from foqs.config import Config, NotValid
from foqs.errors import Invalid
from foqs.running import change

log = structlog.get_logger("foqs.config")

Read = Callable[[], Config]
Apply = Callable[[Config], None]


def on_hangup(running: Config, read: Read | None, apply: Apply) -> asyncio.Task[None]:
    """From now on SIGHUP has the configuration read again. Keep the task.

    `read` makes it, or raises Invalid; None: there is nothing that it could be read from. `apply(config)` is called on
    the event loop with what runs from then on. One that is not valid changes nothing.
    """
    wanted = asyncio.Event()
    signals.on_hangup(wanted.set)

    async def follow() -> None:
        nonlocal running
        while True:
            await wanted.wait()
            wanted.clear()
            if read is None:
                log.error("config.not_reloaded", errors=["there is no file that it was read from"])
                continue
            try:
                # On a thread: a disk may hang. A SIGHUP meanwhile has it read once more.
                running = take(running, await _read_aside(read), apply)
            except NotValid as error:
                log.error("config.not_reloaded", errors=error.errors)
            except Invalid as error:
                log.error("config.not_reloaded", errors=[error.message])

    return asyncio.get_running_loop().create_task(follow())


def _read_aside(read: Read) -> asyncio.Future[Config]:
    """On no thread of the loop's own: those are waited for when it ends, and a disk that hangs would keep the host."""
    made: Future[Config] = Future()
    made.set_running_or_notify_cancel()

    def work() -> None:
        try:
            config = read()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            made.set_exception(error)
        else:
            made.set_result(config)

    threading.Thread(target=work, name="foqs-reload", daemon=True).start()
    return asyncio.wrap_future(made)


def take(running: Config, read: Config, apply: Apply) -> Config:
    """What runs from now on; says which keys are other than before, and which wait for a restart. Raises NotValid."""
    changed = change(running, read)
    logs.set_level(changed.config.log.level)
    apply(changed.config)
    live, restart = list(changed.live), list(changed.restart)
    if restart:
        log.warning("config.partly_reloaded", changed=live, needs_restart=restart)
    else:
        log.info("config.reloaded", changed=live)
    return changed.config
