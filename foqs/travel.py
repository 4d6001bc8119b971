"""What may leave its process by pickle or copy, and what must stay."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class TravellingError(Exception):
    """Base of errors that pickle and copy as they are: with their text, their arguments and all attributes.

    Python calls the class with the arguments of `Exception.__init__` in their place, which differ from those of most
    constructors. An error that a child process cannot return ends the whole pool of processes of the parent.
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
        raise TypeError(f"a {type(self).__name__} cannot be copied, pickled or sent to another process: {self.instead}")


def _error(kind: type[T], args: tuple[Any, ...], attributes: dict[str, Any]) -> T:
    made: Any = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(attributes)
    return made  # type: ignore[no-any-return]
