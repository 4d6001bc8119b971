"""Folders of one process: the hold against a second one, and files that are replaced whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foqs.errors import Invalid


def make_private(folder: Path) -> None:
    """Make a missing folder, and its missing parents, for its owner alone. An existing one keeps its mode. Raises
    OSError."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def held_folder(folder: Path, option: str, command: str) -> Iterator[None]:
    """Make the folder, and hold it against a second `foqs COMMAND`. `option` names it to users.

    Raises Invalid if another process holds it. The system ends the hold with the process.
    """
    try:
        make_private(folder)
        lock = (folder / f"{command}.lock").open("a+")
    except OSError as error:
        raise Invalid(f"{option} {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            by = f" ({words})" if (words := lock.read().strip()) else ""
            raise Invalid(
                f"{option} {folder}: another `foqs {command}` runs on this folder{by}: use it, stop it, or choose "
                f"another {option}"
            ) from None
        except OSError:  # the file system has no locks
            pass
        lock.truncate(0)
        print(f"process {os.getpid()}", file=lock, flush=True)
        yield


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, readable to its owner alone: a later reader finds the old file or the new one, also after a power
    cut. Raises OSError."""
    new = path.with_name(f"{path.name}.tmp")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
