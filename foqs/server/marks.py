"""Store how far the ids of shards went, outside their databases: in ZooKeeper, or in files of a lone host.

Marks never hold up a host. A mark that cannot be written or read is logged, and the host serves without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from foqs.engine.shard import Shard
from foqs.errors import Invalid
from foqs.folders import replace_file
from foqs.ids import MARK_STEP, Mark, Marks, Stamp, decode_mark, encode_mark, mark_ahead
from foqs.opened import Opened
from foqs.zk.protocol import FactStore, ZkError

log = structlog.get_logger("foqs.host")

_AGAIN_MS = 10_000
_PATIENCE_MS = 5_000
_REFRESH_MS = 10_000
"""A mark is written again after this time if its shard's owner has committed something since. A copy that was made
before that, and is put back after a crash, is known for one."""
T = TypeVar("T")
Recalled = Callable[[Marks, str], None]
"""Called with the marks of a shard's number and the reason why some cannot be read ('': all were read)."""
Saved = Callable[[str], None]
"""Called with the reason why the mark was not written ('': it was written)."""


class MarkStore(Protocol):
    """Storage of marks. Methods run on the event loop, return at once, and call back on the loop."""

    def recall(self, shard: int, done: Recalled) -> None: ...

    def save(self, shard: int, identity: str, mark: Mark, done: Saved) -> None:
        """Write the mark of the shard with this identity, unless a later owner's mark is stored."""


class ClusterMarks:
    """Marks in ZooKeeper. An owner's record is ephemeral and ends with the owner; a mark stays."""

    def __init__(self, facts: FactStore) -> None:
        self._facts = facts

    def recall(self, shard: int, done: Recalled) -> None:
        self._facts.recall(shard, lambda marks, error: done(marks, _reason(error)))

    def save(self, shard: int, identity: str, mark: Mark, done: Saved) -> None:
        self._facts.remember(shard, identity, mark, lambda error: done(_reason(error)))


class FileMarks:
    """One file for each shard in `directory`, which is created with the first file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def recall(self, shard: int, done: Recalled) -> None:
        _in_thread(lambda: read_marks(self._directory, shard), lambda found: done(*found))

    def save(self, shard: int, identity: str, mark: Mark, done: Saved) -> None:
        file = mark_file(self._directory, shard, identity)

        def write() -> str:
            try:
                write_mark(file, mark)
            except OSError as error:
                return f"{file}: {error}"
            return ""

        _in_thread(write, done)


@dataclass(slots=True)
class _Kept:
    """What this process knows of a shard that it opened. `number`, `seq`: as the shard's database has them."""

    identity: str
    mark: Mark
    number: int
    seq: int
    raise_at: int
    """The number at which the ceiling is raised."""


class Marker:
    """The marks of the shards that this host opens. Without `marks`, only this process remembers them.

    `stamp()` is the time that marks are written with.
    """

    def __init__(
        self,
        marks: MarkStore | None,
        later: Callable[[int, Callable[[], None]], object],
        stamp: Callable[[], Stamp] = Stamp,
    ) -> None:
        self._marks = marks
        self._later = later
        self._stamp = stamp
        self._kept: dict[int, _Kept] = {}
        self._saving: set[int] = set()
        self._failed: set[int] = set()
        self._refreshing = False

    @property
    def idle(self) -> bool:
        return not self._saving

    def recall(self, number: int, done: Callable[[Marks | None], None]) -> None:
        """Call `done` once with the marks of the shard's number: when they are read, or when reading fails or takes too
        long. None: this host keeps none."""
        if self._marks is None:
            own = self._own(number)
            done(own or None)
            return
        waiting = [done]

        def recalled(marks: Marks, why_not: str) -> None:
            if not waiting:
                return
            if why_not:
                log.warning("shard.mark_not_read", shard=number, reason=why_not)
            known = dict(marks)
            for identity, mark in self._own(number).items():
                known[identity] = max(mark, known.get(identity, mark))
            waiting.pop()(known)

        self._marks.recall(number, recalled)
        if waiting:
            self._later(_PATIENCE_MS, lambda: recalled({}, f"no answer in {_PATIENCE_MS} ms"))

    def opened(self, number: int, opened: Opened) -> None:
        """Note that a shard was opened with the marks that were recalled."""
        if opened.behind is not None:
            log.warning(
                "shard.restored", shard=number, epoch=opened.epoch, next_number=opened.next_number,
                remembered_epoch=opened.behind.epoch, remembered_number=opened.behind.number,
                leases_ended=opened.leases_ended,
            )  # fmt: skip
        mark = mark_ahead(opened.epoch, opened.next_number, opened.seq)
        self._kept[number] = _Kept(opened.identity, mark, opened.next_number, opened.seq, 0)
        self._keep(number, mark)

    def committed(self, number: int, next_number: int) -> None:
        """Note that a transaction has stored `next_number`. Most calls write nothing."""
        kept = self._kept[number]
        kept.number = next_number
        kept.seq += 1
        if next_number >= kept.raise_at:
            self._keep(number, mark_ahead(kept.mark.epoch, next_number, kept.seq))
        elif not self._refreshing and self._marks is not None:
            self._refreshing = True
            self._later(_REFRESH_MS, self._refresh)

    def closed(self, shard: Shard) -> None:
        """Save the exact mark of a shard that is about to be closed in order, which frees its reserved numbers."""
        kept = self._kept[shard.number]
        self._keep(shard.number, Mark(shard.owner.epoch, kept.number, shard.queue.next_number, kept.seq))

    def save_again(self) -> None:
        """Save the marks of all shards that are open here: their store may have lost them."""
        for number in self._kept:
            self._save(number)

    def _refresh(self) -> None:
        self._refreshing = False
        for number, kept in self._kept.items():
            if kept.seq > kept.mark.seq:
                self._keep(number, kept.mark._replace(number=kept.number, seq=kept.seq))

    def _own(self, number: int) -> Marks:
        kept = self._kept.get(number)
        return {} if kept is None else {kept.identity: kept.mark._replace(number=kept.number, seq=kept.seq)}

    def _keep(self, number: int, mark: Mark) -> None:
        kept = self._kept[number]
        kept.mark = mark._replace(stamp=self._stamp())
        kept.raise_at = mark.ceiling - MARK_STEP // 2
        self._save(number)

    def _save(self, number: int) -> None:
        if self._marks is not None and number not in self._saving:
            self._saving.add(number)
            kept = self._kept[number]
            self._marks.save(number, kept.identity, kept.mark, partial(self._saved, number, kept.mark))

    def _saved(self, number: int, mark: Mark, why_not: str) -> None:
        self._saving.discard(number)
        if not why_not:
            self._failed.discard(number)
            if self._kept[number].mark != mark:
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


def mark_file(directory: Path, shard: int, identity: str) -> Path:
    """Return the file with the mark of a shard."""
    return directory / f"shard-{shard}-{identity}.mark"


def read_marks(directory: Path, shard: int) -> tuple[Marks, str]:
    """Return the marks of all shards that had this number, and the reason why one of them cannot be read."""
    found: dict[str, Mark] = {}
    why_not = ""
    try:
        files = sorted(directory.glob(f"shard-{shard}-*.mark"))
    except OSError as error:
        return found, f"{directory}: {error}"
    for file in files:
        try:
            mark = read_mark(file)
        except (OSError, Invalid) as error:
            why_not = f"{file}: {error}"
        else:
            if mark is not None:
                found[file.stem.rpartition("-")[2]] = mark
    return found, why_not


def read_mark(file: Path) -> Mark | None:
    """Return the mark in `file`, None without a file. Raises OSError and Invalid."""
    try:
        return decode_mark(file.read_bytes())
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
    replace_file(file, encode_mark(mark))


def _in_thread(work: Callable[[], T], done: Callable[[T], None]) -> None:
    def finished(future: asyncio.Future[T]) -> None:
        if not future.cancelled():
            done(future.result())

    asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(finished)


def _reason(error: ZkError | None) -> str:
    return "" if error is None else f"ZooKeeper: {error}"
