"""Signals to a process that serves: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration.

The event loop's own handlers do not serve here: the loop removes them when it closes. A signal between that and the end
of the interpreter would then turn an orderly end into a failure.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from foqs.cli import logs
from foqs.errors import Invalid
from foqs.event_loop import on_daemon_thread
from foqs.stop_count import StopCount

if TYPE_CHECKING:
    from foqs.config.load import Config

log = structlog.get_logger("foqs.config.load")

Read = Callable[[], "Config"]
Apply = Callable[["Config"], None]

_ENDING = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_ENDING, signal.SIGHUP)


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` on the running loop at each SIGTERM and SIGINT that counts."""
    count = StopCount()
    for number in _ENDING:
        _on(number, stop, count)


def _on(number: signal.Signals, do: Callable[[], None], count: StopCount | None = None) -> None:
    loop = asyncio.get_running_loop()

    def heard(*_: object) -> None:
        if (count is None or count.counts(monotonic())) and not loop.is_closed():
            loop.call_soon_threadsafe(do)

    signal.signal(number, heard)
    _wake(loop)


def _wake(loop: asyncio.AbstractEventLoop) -> None:
    """Let signals wake the loop. Otherwise a signal just before a wait is handled after that wait.

    uvloop does this by itself; asyncio's loop does it only for its own handlers.
    """
    known = signal.set_wakeup_fd(-1)
    if known == -1:
        woken, known = os.pipe()  # never closed, so a write after the end of the loop is no error
        for end in (woken, known):
            os.set_blocking(end, False)
        loop.add_reader(woken, os.read, woken, 4096)
    signal.set_wakeup_fd(known, warn_on_full_buffer=False)


@contextmanager
def last_work() -> Iterator[None]:
    """Ignore signals after the block: the interpreter restores their defaults while it ends."""
    try:
        yield
    finally:
        # Blocked first, because a pending signal without a handler prints an error. The mask is this thread's alone: a
        # signal that another thread receives while its handler changes prints one all the same.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        sys.unraisablehook = _unraisable
        for number in _HEARD:
            signal.signal(number, signal.SIG_IGN)


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    if not isinstance(error.exc_value, OSError) or "ignored due to race condition" not in str(error.exc_value):
        sys.__unraisablehook__(error)


def on_hangup(running: Config, read: Read | None, apply: Apply) -> asyncio.Task[None]:
    """Read the configuration again at each SIGHUP. Keep the returned task.

    `read` returns the configuration or raises Invalid; None means that there is no file. `apply(config)` runs on the
    event loop with the new configuration. A configuration that is not valid changes nothing.
    """
    wanted = asyncio.Event()
    _on(signal.SIGHUP, wanted.set)

    async def follow() -> None:
        from foqs.config.load import NotValid  # which a process of tasks has no packages for

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
    from foqs.config.load import change

    changed = change(running, read)
    logs.set_level(changed.config.log.level)
    apply(changed.config)
    live, restart = list(changed.live), list(changed.restart)
    if restart:
        log.warning("config.partly_reloaded", changed=live, needs_restart=restart)
    else:
        log.info("config.reloaded", changed=live)
    return changed.config
