"""Store how far the ids of shards went, outside their databases: in ZooKeeper, or in files of a lone host.

Marks never hold up a host. A mark that cannot be written or read is logged, and the host serves without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from foqs.engine.shard import Shard
from foqs.errors import Invalid
from foqs.marks import STEP, Mark, ahead, decode, encode, newer
from foqs.rows import Opened
from foqs.zk.protocol import FactStore, ZkError

log = structlog.get_logger("foqs.host")

_AGAIN_MS = 10_000
_PATIENCE_MS = 5_000
T = TypeVar("T")
Recalled = Callable[[Mark | None, str], None]
"""Called with the mark (None: there is none) and the reason why it cannot be read ('': it was read)."""
Saved = Callable[[str], None]
"""Called with the reason why the mark was not written ('': it was written)."""


class Marks(Protocol):
    """Storage of marks. Methods run on the event loop, return at once, and call back on the loop."""

    def recall(self, shard: int, done: Recalled) -> None: ...

    def save(self, shard: int, mark: Mark, done: Saved) -> None:
        """Write `mark`, unless a later owner's mark is stored."""


class ClusterMarks:
    """Marks in ZooKeeper. An owner's record is ephemeral and ends with the owner; a mark stays."""

    def __init__(self, facts: FactStore) -> None:
        self._facts = facts

    def recall(self, shard: int, done: Recalled) -> None:
        self._facts.recall(shard, lambda mark, error: done(mark, _reason(error)))

    def save(self, shard: int, mark: Mark, done: Saved) -> None:
        self._facts.remember(shard, mark, lambda error: done(_reason(error)))


class FileMarks:
    """One file for each shard and database in `directory`, which is created with the first file."""

    def __init__(self, directory: Path, urls: Mapping[int, str]) -> None:
        self._files = {number: directory / f"shard-{number}-{_database(url)}.mark" for number, url in urls.items()}

    def recall(self, shard: int, done: Recalled) -> None:
        def read() -> tuple[Mark | None, str]:
            try:
                return read_mark(self._files[shard]), ""
            except (OSError, Invalid) as error:
                return None, f"{self._files[shard]}: {error}"

        _in_thread(read, lambda found: done(*found))

    def save(self, shard: int, mark: Mark, done: Saved) -> None:
        def write() -> str:
            try:
                write_mark(self._files[shard], mark)
            except OSError as error:
                return f"{self._files[shard]}: {error}"
            return ""

        _in_thread(write, done)


class Marker:
    """The marks of the shards that this host opens. Without `marks`, only this process remembers them."""

    def __init__(self, marks: Marks | None, later: Callable[[int, Callable[[], None]], None]) -> None:
        self._marks = marks
        self._later = later
        self._known: dict[int, Mark] = {}
        self._stored: dict[int, int] = {}  # the next number, as the shard's database has it
        self._raise_at: dict[int, int] = {}  # the number at which the ceiling is raised
        self._saving: set[int] = set()
        self._failed: set[int] = set()

    @property
    def idle(self) -> bool:
        return not self._saving

    def recall(self, number: int, done: Callable[[Mark | None], None]) -> None:
        """Call `done` once with the shard's mark: when it is read, or when reading fails or takes too long."""
        if self._marks is None:
            done(self._own(number))
            return
        waiting = [done]

        def recalled(mark: Mark | None, why_not: str) -> None:
            if not waiting:
                return
            if why_not:
                log.warning("shard.mark_not_read", shard=number, reason=why_not)
            waiting.pop()(newer(mark, self._own(number)))

        self._marks.recall(number, recalled)
        if waiting:
            self._later(_PATIENCE_MS, lambda: recalled(None, f"no answer in {_PATIENCE_MS} ms"))

    def opened(self, number: int, opened: Opened) -> None:
        """Note that a shard was opened with the mark that was recalled."""
        if opened.behind is not None:
            log.warning(
                "shard.restored", shard=number, epoch=opened.epoch, next_number=opened.next_number,
                remembered_epoch=opened.behind.epoch, remembered_number=opened.behind.number,
            )  # fmt: skip
        self._stored[number] = opened.next_number
        self._keep(number, ahead(opened.epoch, opened.next_number))

    def committed(self, number: int, next_number: int) -> None:
        """Note that a transaction has stored `next_number`. Most calls write nothing."""
        self._stored[number] = next_number
        if next_number >= self._raise_at[number]:
            self._keep(number, ahead(self._known[number].epoch, next_number))

    def closed(self, shard: Shard) -> None:
        """Save the exact mark of a shard that is about to be closed in order, which frees its reserved numbers."""
        self._keep(shard.number, Mark(shard.epoch, self._stored[shard.number], shard.next_number))

    def _own(self, number: int) -> Mark | None:
        known = self._known.get(number)
        return None if known is None else known._replace(number=self._stored[number])

    def _keep(self, number: int, mark: Mark) -> None:
        self._known[number] = mark
        self._raise_at[number] = mark.number + STEP // 2
        self._save(number)

    def _save(self, number: int) -> None:
        if self._marks is not None and number not in self._saving:
            self._saving.add(number)
            mark = self._known[number]
            self._marks.save(number, mark, partial(self._saved, number, mark))

    def _saved(self, number: int, mark: Mark, why_not: str) -> None:
        self._saving.discard(number)
        if not why_not:
            self._failed.discard(number)
            if self._known[number] != mark:
                self._save(number)
        elif number not in self._failed:
            self._failed.add(number)
            log.warning("shard.mark_not_saved", shard=number, reason=why_not)
            self._later(_AGAIN_MS, partial(self._try_again, number))

    def _try_again(self, number: int) -> None:
        """Save again until it succeeds. The failure was logged, and is logged again only after a success."""
        if number in self._failed:
            self._save(number)
            self._later(_AGAIN_MS, partial(self._try_again, number))


def read_mark(file: Path) -> Mark | None:
    """Return the mark in `file`, None without a file. Raises OSError and Invalid."""
    try:
        return decode(file.read_bytes())
    except FileNotFoundError:
        return None


def write_mark(file: Path, mark: Mark) -> None:
    """Replace the file atomically, unless it holds the mark of a later owner. Raises OSError."""
    try:
        found = read_mark(file)
    except Invalid:
        found = None
    if found is not None and found.epoch > mark.epoch:
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(file.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(encode(mark))
        opened.flush()
        os.fsync(descriptor)
    new.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _in_thread(work: Callable[[], T], done: Callable[[T], None]) -> None:
    def finished(future: asyncio.Future[T]) -> None:
        if not future.cancelled():
            done(future.result())

    asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(finished)


def _database(url: str) -> str:
    """Return a short name of the database behind `url`, the same for every account and password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the store refuses it in words
        return "unreadable"
    place = f"{parsed.get_backend_name()}\0{parsed.host}\0{parsed.port}\0{parsed.database}"
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _reason(error: ZkError | None) -> str:
    return "" if error is None else f"ZooKeeper: {error}"
