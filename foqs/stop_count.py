"""Counts the signals that ask a program to stop, because one wish often comes as two signals."""

from __future__ import annotations

ONE_WISH_S = 1.0
"""Signals within this time of the first are one wish: a terminal sends Ctrl-C to a whole process group, in which a
supervisor or a shell passes its signal on; some platforms signal each process of a container."""


class StopCount:
    """The signals of one program. Times are seconds of a monotonic clock."""

    __slots__ = ("_first_s",)

    def __init__(self) -> None:
        self._first_s: float | None = None

    def counts(self, now_s: float) -> bool:
        """Return True for the first signal, and for each that comes more than a second after it; False for its echo."""
        if self._first_s is None:
            self._first_s = now_s
            return True
        return now_s - self._first_s > ONE_WISH_S
