"""The token of a client, and files of credentials that are replaced while the program runs."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path

from foqs.client.guard import SafeLog
from foqs.errors import Invalid

LOOK_S = 10.0
"""A token's file is looked at this often at most. A look is one call of the operating system."""
log = SafeLog()

Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(*paths: str | os.PathLike[str] | None) -> Stamp:
    """Return what changes when one of the files is replaced or written."""
    return tuple(None if path is None else _stamp(path) for path in paths)


def _stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Token:
    """A token, None, or `@path` of a file with it, which is read again when it has changed.

    Raises Invalid, which does not name the token.
    """

    __slots__ = ("_path", "_stamp", "due_s", "value")

    def __init__(self, given: str | None) -> None:
        self._path = Path(given[1:]) if given is not None and given.startswith("@") else None
        self._stamp: Stamp = () if self._path is None else stamp_of(self._path)
        self.value = given if self._path is None else _read(self._path)
        self.due_s = inf if self._path is None else -inf
        """Call `look` at this time of the monotonic clock, in seconds."""

    def look(self, now_s: float) -> bool:
        """Return True if the file has another token now. The client keeps the token of a file that cannot be read."""
        if self._path is None:
            return False
        self.due_s = now_s + LOOK_S
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            before, self.value = self.value, _read(self._path)
        except Invalid as error:
            log.warning("%s: the client keeps the token that it has", error.message)
            return False
        return before != self.value


def _read(path: Path) -> str:
    try:
        token = path.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"token: cannot read {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not token:
        raise Invalid(f"token: {path} is empty")
    return token
