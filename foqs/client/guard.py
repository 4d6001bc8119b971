"""Protects the threads of the library from objects of its user: exceptions, callbacks, and handlers of logs.

Any of them may raise any exception when it is read or called, and a thread that ends by one works no more.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NAME = type.__dict__["__name__"]
"""Reads a class's name past its metaclass, which may have a `__name__` of its own."""


def kind_of(error: object) -> str:
    """Return the name of the type of `error`. Never raises."""
    return _plain(_NAME.__get__(type(error)))


def text_of(error: BaseException) -> str:
    """Return `str(error)`. Never raises: of an exception whose text cannot be built, the result says why."""
    try:
        return _plain(str(error))
    except BaseException as broken:  # noqa: BLE001 - whatever the text raises, it is not what the caller does
        return f"its text cannot be built: {kind_of(broken)}"


def is_a(thing: object, kind: type | tuple[type, ...]) -> bool:
    """Return `isinstance(thing, kind)`, by the real type alone: a `__class__` of the user may raise."""
    return issubclass(type(thing), kind)


def is_interrupt(error: BaseException) -> bool:
    """Return True if `error` asks the main thread to end, so that it must go through."""
    return not is_a(error, Exception) and threading.current_thread() is threading.main_thread()


def guarded(what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the result of `call`. An exception is logged with `what`, and the result is None then. An interrupt of the
    main thread is raised."""
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        if is_interrupt(error):
            raise
        SafeLog().error("%s failed", what, exc_info=error)
        return None


def run_to_end(
    failed: Callable[[BaseException], object], work: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Run the work of a thread. What ends it by an error is given to `failed`."""
    try:
        work(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - `failed` reports it
        failed(error)


class SafeLog:
    """The log `foqs.client`. Its methods raise nothing but an interrupt of the main thread: a line that a handler of
    the user's logging refuses is written without its traceback, else to stderr."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("foqs.client")

    def debug(self, text: str, *args: object) -> None:
        self._log(logging.DEBUG, text, args, None)

    def info(self, text: str, *args: object) -> None:
        self._log(logging.INFO, text, args, None)

    def warning(self, text: str, *args: object) -> None:
        self._log(logging.WARNING, text, args, None)

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._log(logging.ERROR, text, args, exc_info)

    def _log(self, level: int, text: str, args: tuple[object, ...], error: BaseException | None) -> None:
        try:
            self._logger.log(level, text, *args, exc_info=error, stacklevel=3)
        except BaseException as broken:
            if is_interrupt(broken):
                raise
            self._log_plain(level, text, args, error, broken)

    def _log_plain(
        self, level: int, text: str, args: tuple[object, ...], error: BaseException | None, broken: BaseException
    ) -> None:
        line = text
        try:
            line = text % args if args else text
            if error is not None:
                line += f" ({kind_of(error)}; its traceback cannot be logged: {kind_of(broken)})"
                self._logger.log(level, "%s", line, stacklevel=4)
                return
        except BaseException as again:
            if is_interrupt(again):
                raise
        _to_stderr(f"{line} (logging failed: {kind_of(broken)})")


def _plain(text: str) -> str:
    """Return a copy that is a `str` itself: a subclass may have methods that raise."""
    return str.encode(text, "utf-8", "replace").decode()


def _to_stderr(line: str) -> None:
    try:
        sys.stderr.write(f"foqs.client: {line}\n")
    except BaseException as error:
        if is_interrupt(error):
            raise
