"""What may leave its process by pickle or copy, what must stay, and errors that are kept or leave their thread."""

from __future__ import annotations

from traceback import TracebackException
from typing import Any, ClassVar, TypeVar

_BETWEEN = frozenset({"foqs", "fast_depends", "asyncio", "concurrent", "contextlib", "threading"})
"""Packages through which foqs calls functions of a user."""

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_TRACEBACK: Any = BaseException.__dict__["__traceback__"]
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]
_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]
"""Read and write past the class of an exception, which may have attributes of its own that raise."""
_CAUSED = "\nThe error above is the cause of this one:\n\n"
_DURING = "\nWhile the error above was handled, this one was raised:\n\n"


class TravellingError(Exception):
    """Base of errors that pickle and copy as they are: with their text, their arguments and all attributes.

    Python calls the class with the arguments of `Exception.__init__` in their place, which most constructors do
    not take. An error that a child process cannot return ends the whole pool of processes of the parent.
    """

    def __reduce__(self) -> Any:
        return _error, (type(self), self.args, self.__dict__)


class Value:
    """Base of dataclasses with slots: every protocol of pickle takes them. Python refuses the protocols 0 and 1 for
    classes with slots that leave their state to `object`."""

    __slots__ = ()

    def __getstate__(self) -> Any:
        return super().__getstate__()


class Local:
    """Base of objects that belong to one process. Their connections, threads and locks work in no other one, and in no
    copy. `instead` says what to do, for the TypeError of pickle and copy."""

    __slots__ = ()
    instead: ClassVar[str]

    def __getstate__(self) -> Any:
        name = type(self).__name__
        article = "an" if name[0] in "AEIO" else "a"
        raise TypeError(f"{article} {name} cannot be copied, pickled or sent to another process: {self.instead}")


def bare(error: E) -> E:
    """Return `error` without its traceback, the tracebacks of its causes, and its context. An error that is stored,
    passed to another thread, or put into a variable that outlives the `except` clause goes through this function.

    A traceback holds the frames from the `raise` to the `except`, the frames of their callers, and all their variables.
    If one of these leads to the error, the circle lives until the garbage collector runs, and hosts run it rarely. An
    error that no caller expects keeps its traceback as the text of a note, with the text of its causes: it says where a
    fault is. A context may be an error of the caller, which keeps its own traceback.
    """
    _note_traceback(error)
    return stripped(error)


def stripped(error: E) -> E:
    """Return what `bare` returns, without the note: for an error whose traceback was logged."""
    left: list[BaseException] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            BaseException.with_traceback(one, None)
            _CONTEXT.__set__(one, None)
            if (cause := _CAUSE.__get__(one)) is not None:
                left.append(cause)
            if issubclass(type(one), BaseExceptionGroup):
                left += _MEMBERS.__get__(one)
    return error


def trimmed(error: E) -> E:
    """Return `error` with the frames of its traceback from the first one of a user on, and its causes likewise. Without
    one the fault is in foqs, and all frames stay. For errors that are logged next, also by another thread."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback = _TRACEBACK.__get__(one)
        while traceback is not None and _is_between(traceback.tb_frame.f_globals.get("__name__")):
            traceback = traceback.tb_next
        if traceback is not None:
            BaseException.with_traceback(one, traceback)
        one = _CAUSE.__get__(one)
    return error


def _is_between(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] in _BETWEEN


def _note_traceback(error: BaseException) -> None:
    traceback = _TRACEBACK.__get__(error)
    if traceback is not None and not issubclass(type(error), TravellingError):
        try:
            BaseException.add_note(error, _text(TracebackException(type(error), error, traceback)))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a class of the user may refuse the note
            pass


def _text(fault: TracebackException) -> str:
    """Return the traceback, after the error of which the fault was made, or during whose handling it was raised."""
    before, how = fault.__cause__, _CAUSED
    if before is None and not fault.__suppress_context__:
        before, how = fault.__context__, _DURING
    first = [] if before is None else [*before.format(), how]
    return "".join([*first, "Traceback (most recent call last):\n", *fault.stack.format()]).rstrip()


def _error(kind: type[T], args: tuple[Any, ...], attributes: dict[str, Any]) -> T:
    made: Any = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(attributes)
    return made  # type: ignore[no-any-return]
