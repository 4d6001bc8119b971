"""The files of secrets of a push process: their modes and their changes.

A process that runs keeps the last good text of a file that cannot be used now, as hosts do with certificates.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from foqs.errors import Invalid

MOST_BYTES = 4_096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOT = 0


class _Read(NamedTuple):
    """`mark`: differs when the file has changed."""

    path: Path
    mark: tuple[int, ...]
    text: str


class SecretFiles:
    """The texts of secrets by their names. `faults`: why a file cannot be used, by name. Not thread-safe: `refresh` may
    run on any thread, one at a time."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self._read: dict[str, _Read] = {}

    def refresh(self, files: Mapping[str, Path]) -> Mapping[str, str]:
        """Read the files that are new or have changed, and return the texts of all that could be read, now or before.
        A secret whose name is gone is forgotten, and one with another file loses the text of the old one."""
        faults: dict[str, str] = {}
        kept: dict[str, _Read] = {}
        for name, path in files.items():
            before = self._read.get(name)
            known = before if before is not None and before.path == path else None
            try:
                kept[name] = _read(path, known)
            except Invalid as error:
                faults[name] = error.message
                if known is not None:
                    kept[name] = known
        self.faults, self._read = faults, kept
        return {name: one.text for name, one in kept.items()}


def mode_error(mode: int, owner: int, user: int) -> str | None:
    """Return the mode of a file and its error, if other users than its owner may use it; None for a good one. `user`:
    of this process. Kubernetes (`fsGroup`) and systemd (`LoadCredential`) give a service its secrets as files of root
    with a group that may read them."""
    allowed = stat.S_IRGRP if owner == _ROOT != user else 0
    if not mode & _OTHERS & ~allowed:
        return None
    return f"{stat.S_IMODE(mode):04o}: only its owner may read or change it: chmod 0400 it"


def read_secret(path: Path) -> str:
    """Return the text of a file without its line end. Raises Invalid, without any part of the text, for a file that
    another user than its owner may read."""
    return _read(path, None).text


def _read(path: Path, known: _Read | None) -> _Read:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise Invalid(f"{path} is no regular file")
        if (fault := mode_error(found.st_mode, found.st_uid, os.geteuid())) is not None:
            raise Invalid(f"{path} has mode {fault}")
        mark = found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        if known is not None and known.mark == mark:
            return known
        data = os.read(file, MOST_BYTES + 1)
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(file)
    if len(data) > MOST_BYTES:
        raise Invalid(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8") from None
    if not text:
        raise Invalid(f"{path} is empty")
    return _Read(path, mark, text)
