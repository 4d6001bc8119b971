"""Protects the library from what its user's program does: exceptions, callbacks, handlers of logs, and forks.

An object of the user may raise any exception when it is read or called, and a thread that ends by one works no more. A
handler or a callback may return work instead of doing it. A forked child shares neither threads nor connections.
"""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from foqs.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")

CALLS_IN_THREADS = (
    "a Worker calls handlers in threads and awaits nothing: make it an ordinary function, for example "
    "`def handle(item): asyncio.run(work(item))`, or give it to an AsyncWorker"
)
IN_LOOP = "make it `async def`, or give it to a Worker, which calls it in a thread"
_AWAIT_IT = "await it in the handler"
_DO_IT = "let the handler do the work itself, and return when it is done"
_LAZY = (map, filter, zip, enumerate)
_HOLD: tuple[Any, ...] = (list, tuple, set, frozenset, deque, type({}.values()), type({}.items()))
_PLAIN = (bool, int, float, str, bytes)
_LOOKED_AT = 100
"""How many values in a returned list are looked at: to look at all would cost a handler that returns its data."""
_MRO = type.__dict__["__mro__"]
_DICT = type.__dict__["__dict__"]

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


def guarded_thread(
    name: str, failed: Callable[[BaseException], object], work: Callable[..., object], *args: object
) -> threading.Thread:
    """Return a daemon thread for `work`, not started. What ends it by an error is given to `failed`."""
    return threading.Thread(target=run_to_end, args=(failed, work, *args), name=name, daemon=True)


class Background:
    """A daemon thread that runs while there is work for it, and ends by itself. A lock of its owner guards it.

    `work` sets `running` to False before it ends.
    """

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.running = False
        self._name = name
        self._work = work

    def begin(self) -> None:
        """Start the thread unless it runs."""
        if not self.running:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self.running = True  # not before: where there can be no more threads, the next call tries again


class SafeLog(logging.LoggerAdapter[logging.Logger]):
    """The log `foqs.client`. Its methods raise nothing but an interrupt of the main thread: a line that a handler of
    the user's logging refuses is written without its traceback, else to stderr."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("foqs.client"))

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        try:
            self.logger.log(level, msg, *args, **options, stacklevel=2)
        except BaseException as broken:
            if is_interrupt(broken):
                raise
            self._log_plain(level, str(msg), args, options.get("exc_info"), broken)

    def _log_plain(
        self, level: int, text: str, args: tuple[object, ...], error: BaseException | None, broken: BaseException
    ) -> None:
        line = text
        try:
            line = text % args if args else text
            if error is not None:
                line += f" ({kind_of(error)}; its traceback cannot be logged: {kind_of(broken)})"
                self.logger.log(level, "%s", line, stacklevel=3)
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


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Called in the child: no other thread exists, and inherited locks may stay locked for ever."""


_living: WeakSet[Forkable] = WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    """Have `thing` renew in a forked child what the child must not share with its parent."""
    _living.add(thing)


def _in_child() -> None:
    for thing in list(_living):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class NotRun(Invalid):
    """The handler returned work, such as an awaitable, a generator or a Future, instead of doing it."""


class _Work(NamedTuple):
    kind: str
    advice: str
    not_done: str = "did not run it"


_ELSEWHERE = _Work("unfinished work of another thread, event loop or process", _DO_IT, "does not wait for it")
_AWAITABLE = _Work("an awaitable", CALLS_IN_THREADS)
_ASYNC_ITERATOR = _Work("an asynchronous iterator", CALLS_IN_THREADS)
_GENERATOR = _Work("a generator", f"{_DO_IT}, without `yield`")
_ITERATOR = _Work("a lazy iterator", f"{_DO_IT}: `list()` runs the iterator")
_NOT_STARTED = _Work("a thread or process that was not started", _DO_IT)
_CALLABLE = _Work("a callable", f"{_DO_IT}: call it in the handler")


def check_returned(
    returned: object, *, elsewhere: bool = False, awaits: bool = False, of: str = "the handler",
    caller: str = "the Worker",
) -> None:  # fmt: skip
    """Raise NotRun if `returned` is work, or a list, tuple, set, deque or dict with work in it at any depth, and end
    the work as far as it was not begun. With `elsewhere`, accept work that a thread, an event loop or a process does.
    `awaits`: the handler could have awaited it.

    Raises what the object raises when its type is read.
    """
    if returned is None or type(returned) in _PLAIN:
        return
    done = (None, _ELSEWHERE) if elsewhere else (None,)
    found = [(one, work) for one in _parts(returned) if (work := _work(one)) not in done]
    if not found:
        return
    for one, _ in found:
        _end(one)
    first, work = found[0]
    assert work is not None, "the list has work only"
    if awaits and inspect.isawaitable(first):
        work = _Work("an awaitable", _AWAIT_IT, "does not wait for it")
    where = "" if first is returned else f" in a {kind_of(returned)}"
    raise NotRun(f"{of} returned {work.kind} ({kind_of(first)}){where} and {caller} {work.not_done}; {work.advice}")


def call_to_end(name: str, call: Callable[..., object], *args: object) -> None:
    """Call the callback `name` of the user. Raises NotRun if it returned work that nothing does."""
    returned = call(*args)
    if returned is not None:
        check_returned(returned, elsewhere=True, of=name, caller="the client")


def _parts(returned: object) -> Iterator[object]:
    """Yield the value itself, then the first values in it, level by level."""
    found, left = deque([returned]), _LOOKED_AT
    while found:
        one = found.popleft()
        yield one
        values: Any = ()
        if is_a(one, dict):
            values = dict.values(one)  # type: ignore[arg-type]  # it is one
        elif kind := next((kind for kind in _HOLD if is_a(one, kind)), None):
            values = kind.__iter__(one)
        # As one tuple: another thread may change a list that the handler shares with it.
        some = tuple(islice(values, left))
        left -= len(some)
        found.extend(value for value in some if type(value) not in _PLAIN)


def _work(one: object) -> _Work | None:
    """Return the kind of work that `one` is; None if it is a result."""
    if type(one) is dict or type(one) in _HOLD:  # the rest takes 20 us
        return None
    if is_a(one, subprocess.Popen) or _has(one, "start", "join", "is_alive", "ident"):
        return _running(one)
    iterates = _has(one, "__next__")
    for is_it, work in (
        # A Future of any library, whatever its state: a handler that waited for it returns its result.
        (_has(one, "add_done_callback") or _has(one, "ready", "successful", "get"), _ELSEWHERE),
        (inspect.isawaitable(one), _AWAITABLE),
        (_has(one, "__anext__") or _has(one, "__aiter__"), _ASYNC_ITERATOR),
        (iterates and _has(one, "send", "throw", "close"), _GENERATOR),
        (iterates and (is_a(one, _LAZY) or type(one).__module__ == "itertools"), _ITERATOR),
        (_has(one, "__call__"), _CALLABLE),
    ):
        if is_it:
            return work
    return None


def _running(one: Any) -> _Work | None:
    """Return what a Popen, a Thread or a multiprocessing.Process is by its state."""
    if is_a(one, subprocess.Popen):
        return _ELSEWHERE if one.poll() is None else None
    if one.ident is None:
        return _NOT_STARTED
    return _ELSEWHERE if one.is_alive() else None


def _end(one: object) -> None:
    """Close a coroutine or a generator, and cancel a Future: the item comes again, and its work with it."""
    work: Any = one
    with suppress(Exception):  # it may have been begun, and fail as it ends
        if is_a(one, (CoroutineType, GeneratorType)):
            work.close()  # or Python warns that it was never awaited
        elif _has(one, "get_loop", "add_done_callback"):  # asyncio's: other threads than its loop's only ask
            work.get_loop().call_soon_threadsafe(work.cancel)
        elif _has(one, "set_running_or_notify_cancel"):
            work.cancel()


def _has(one: object, *names: str) -> bool:
    """Return True if the type of `one` has all `names`."""
    kinds = _MRO.__get__(type(one))
    return all(next((of[name] for of in map(_DICT.__get__, kinds) if name in of), None) is not None for name in names)
