"""Ctrl-C, SIGTERM and SIGHUP in a command. Only its body gets an exception of them, which its clean-up needs.

Ctrl-C ends the process at once while modules are imported, while the command line is parsed, and when the interpreter
ends. There the exception would print a traceback, or would be lost. This module imports little, because Ctrl-C prints a
traceback until it is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes 2 ms
    from collections.abc import Coroutine
    from typing import Any, NoReturn, TypeVar

    T = TypeVar("T")
    _Handler = tuple[Any, Any]
    """Outside a block, and inside it."""

INTERRUPTED = 130
_AGAIN_S = 0.01


def end_at_once() -> None:
    """End the process at SIGINT from now on, as `ends_at_once` does, until it ends by itself."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, where SIGINT raises KeyboardInterrupt. `number`: the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ends_at_once:
    """End the process at SIGINT inside the block, with status 130 and one line.

    If SIGINT is ignored (`nohup`, a background job), or has another handler, it stays so.
    """

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        end_at_once()

    def __exit__(self, *_: object) -> None:
        if self._before is not end and signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, self._before)


class body_of_command:
    """Raise KeyboardInterrupt at SIGINT inside the block, where `ends_at_once` holds around it.

    Raise Terminated at SIGTERM and SIGHUP, unless they are ignored or have other handlers.
    """

    def __enter__(self) -> None:
        self._before: dict[int, _Handler] = {}
        if signal.getsignal(signal.SIGINT) is end:
            self._before[signal.SIGINT] = end, signal.default_int_handler
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL, _terminate
        try:
            for each, (_, inside) in self._before.items():
                signal.signal(each, inside)
        except ValueError:  # this thread is not the main one, which alone handles signals
            self._before = {}
        if self._before:
            self._hook = sys.unraisablehook
            sys.unraisablehook = self._unraisable

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        for number, (before, inside) in self._before.items():
            if signal.getsignal(number) is inside:
                signal.signal(number, before)
        if sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._hook

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Send the signal again if a callback of the interpreter lost its exception, for example one of an import."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._hook(lost)
            return
        from threading import Timer

        number = lost.exc_value.number if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        again = Timer(_AGAIN_S, os.kill, [os.getpid(), number])
        again.daemon = True
        again.start()


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on an event loop, which cancels it at a signal that `body_of_command` raises an exception for.

    The loop does that between two callbacks. `asyncio.run` alone cancels it inside of the callback that runs, which may
    be about to answer it, and then fails. Raises KeyboardInterrupt or Terminated at the end of a coroutine that was
    cancelled so.
    """
    import asyncio
    from threading import current_thread, main_thread

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if current_thread() is main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: one for number, one in before.items() if one in (signal.default_int_handler, _terminate)}
    came: list[int] = []

    async def work() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int) -> None:
            came.append(number)
            task.cancel()

        for number in before:
            loop.add_signal_handler(number, stop, number)
        try:
            return await main
        finally:  # the end of the loop may wait for threads
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    try:
        return asyncio.run(work())
    except asyncio.CancelledError:
        if not came:
            raise
        raise KeyboardInterrupt if came[0] == signal.SIGINT else Terminated(came[0]) from None
    except KeyboardInterrupt:
        # It may come between the making of a coroutine that ends the loop and its first step.
        from warnings import filterwarnings

        filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise


def _terminate(number: int, _: object) -> NoReturn:
    raise Terminated(number)


def end_by(number: int) -> NoReturn:
    """End the process as the signal does without a handler: its parent sees the signal."""
    try:
        sys.stdout.flush()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container survives its own signal


def end(*_: object) -> NoReturn:
    """Report the interrupt and end the process. A handler of SIGINT."""
    try:
        os.write(2, _report().encode() + b"\n")
        sys.stdout.flush()  # what the command printed before it ended
    finally:
        os._exit(INTERRUPTED)


def _report() -> str:
    # Not through the log: the handler may have interrupted it while it holds its lock, or while it is imported.
    form = getattr(sys.modules.get("foqs.cli.logs"), "is_json", None)
    if not (os.environ.get("FOQS_LOG__FORMAT") == "json" if form is None else form()):
        return "foqs: interrupted"
    now_ns = time.time_ns()
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ns // 10**9))
    return (
        f'{{"timestamp": "{now}.{now_ns // 1000 % 10**6:06d}Z", "level": "error", "event": "command.failed", '
        f'"logger": "foqs.log", "error": "interrupted", "status": {INTERRUPTED}}}'
    )
