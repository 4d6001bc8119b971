"""Writes lines of the log to stderr without ever waiting for its reader."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import threading
from contextlib import suppress

_Place = tuple[int, int, int]


class Outlet:
    """Drops and counts lines that cannot be written now: the disk is full, or the reader is gone or slow.

    It opens a pipe or terminal a second time, so that non-blocking mode applies to this opening only. Set on the
    descriptor itself, the mode would apply to every process with the same stderr. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: _Place | None = None  # stderr at the time of the opening
        self._own: int | socket.socket | None = None
        self._rest = b""  # of a line that was written in part
        self._lost = 0

    def write(self, line: str) -> bool:
        """Write a line and its line end. False if the line is lost."""
        with self._lock:
            try:
                written = self._write(line.encode("utf-8", "backslashreplace") + b"\n")
            except (OSError, ValueError):  # ValueError: stderr was closed
                self._rest = b""
                written = False
            self._lost += not written
            return written

    def lost(self) -> int:
        """Return the number of lines lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
            return lost

    def _write(self, data: bytes) -> bool:
        try:
            number = sys.stderr.fileno()
        except OSError:  # a replacement that is not a file
            print(data.decode(), end="", file=sys.stderr, flush=True)
            return True
        self._open(number)
        if self._rest:
            self._rest = self._rest[self._send(number, self._rest) :]
            if self._rest:
                return False
        sent = self._send(number, data)
        if sent:
            self._rest = data[sent:]
        return sent > 0

    def _send(self, number: int, data: bytes) -> int:
        """Return the number of bytes written."""
        sent = 0
        with suppress(BlockingIOError):
            while sent < len(data):
                if isinstance(self._own, socket.socket):
                    sent += self._own.send(data[sent:], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                else:
                    sent += os.write(number if self._own is None else self._own, data[sent:])
        return sent

    def _open(self, number: int) -> None:
        found = os.fstat(number)
        place = (number, found.st_dev, found.st_ino)
        if place == self._place:
            return
        self._close()
        self._place = place
        if stat.S_ISSOCK(found.st_mode):
            self._own = socket.socket(fileno=os.dup(number))
        elif stat.S_ISFIFO(found.st_mode) or os.isatty(number):
            try:
                self._own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError as error:  # another user's terminal: write to stderr itself
                if error.errno == errno.ENXIO:  # a pipe without a reader now; a reader may open it later
                    self._place = None
                    raise

    def _close(self) -> None:
        own, self._own, self._rest = self._own, None, b""
        if isinstance(own, socket.socket):
            own.close()
        elif own is not None:
            os.close(own)
