"""Batches of items whose home a shard is, and their work that waits for the shard's database.

`foqs.item_batch` has the course of a batch, `foqs.engine.batch_homes` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from heapq import heappush
from typing import NamedTuple

from foqs.buffers.checkpoint import NEVER_MS
from foqs.errors import FoqsError
from foqs.item_batch import MOST_FAILED_IDS, BatchInfo, BatchPart, BatchRow, Counts, NewBatch

ASK_MS, LONGEST_ASK_MS = 1_000, 30_000
"""The home of a batch that may end asks the shards that have members, with growing pauses."""
LOOK_MS = 60_000
"""Between two looks for batches that ended long ago."""
_MOST_RECENT = 10_000


class Report(NamedTuple):
    """What a shard says to the home of a batch. `ns`: of the items that wait for the answer; None: none waits."""

    part: BatchPart
    ns: str | None = None


class Question(NamedTuple):
    """What the home of a batch asks of a shard: a report; and to `cancel` its members, or to `forget` them."""

    batch: int
    cancel: bool = False
    forget: bool = False


Told = Callable[[list[FoqsError | None]], None]
"""Gets an outcome for each report. None: the home has committed it. Invalid: the batch takes no members of this
namespace; the report counts all the same if the batch is known. NotFound: there is no such batch, and no item waits."""
TellHomes = Callable[[list[Report], Told], None]
AskMembers = Callable[[int, list[Question], Callable[[list[int]], None]], None]
"""(shard, questions, forgotten): `forgotten` gets the batches of `forget` of which the shard has no row any longer."""


class BatchLinks(NamedTuple):
    """The messages about batches: reports to their homes, and questions to shards. `all_shards`: that exist; empty
    where that is not known."""

    tell_homes: TellHomes
    ask_members: AskMembers
    all_shards: Callable[[], Set[int]]


@dataclass(eq=False, slots=True)
class Creation:
    """A batch that is created. `reply` gets its id, or why it was not created."""

    new: NewBatch
    created_at_ms: int
    reply: Callable[[int | FoqsError], None]
    id: int = 0

    @property
    def counts(self) -> Mapping[int, int]:
        return {self.new.parent: 1} if self.new.parent else {}


class Home:
    """A batch that has not ended, at its home. `ending`: its end is being written, and reports wait. `unheard`: shards
    that have to report before it may end. `ask_ms`: when the shards that lack ends are asked."""

    __slots__ = ("ask_ms", "ending", "parts", "pause_ms", "row", "unheard")

    def __init__(self, row: BatchRow) -> None:
        self.row = row
        self.parts: dict[int, BatchPart] = {}
        self.ending = False
        self.unheard: set[int] = set()
        self.ask_ms = NEVER_MS
        self.pause_ms = ASK_MS

    def counts(self) -> Counts:
        return total(self.parts.values())

    def lacking(self) -> set[int]:
        """Return the shards that have members which have not ended, as far as is known, or that have to report."""
        lacks = {number for number, part in self.parts.items() if part.counts.members > part.counts.ended}
        return lacks | self.unheard


def total(parts: Iterable[BatchPart]) -> Counts:
    """Return the counts of all shards together."""
    made = Counts()
    for part in parts:
        made = made.plus(part.counts)
    return made


def failed_ids(parts: Iterable[BatchPart]) -> tuple[int, ...]:
    """Return the first members that have failed, of all shards."""
    return tuple(sorted(one for part in parts for one in part.failed_ids)[:MOST_FAILED_IDS])


@dataclass(eq=False, slots=True)
class Reported:
    """A report that waits for its commit. `answer` gets its outcome."""

    report: Report
    answer: Callable[[FoqsError | None], None]


@dataclass(eq=False, slots=True)
class Turn:
    """A change of the state of a batch by a caller, or with its parent (`ns` None)."""

    ns: str | None
    batch: int
    state: int
    reply: Callable[[FoqsError | None], None]


@dataclass(eq=False, slots=True)
class FindBatch:
    """A question of a caller. `reply` gets the batch, or an error."""

    ns: str
    batch: int
    reply: Callable[[BatchInfo | FoqsError], None]


class Homes:
    """`live`: the batches that have not ended, all when `known`. `recent`: batches that
    ended here lately, with their namespaces. `times`: a heap of (time, batch), when a batch may have work; `look_ms`:
    when to look for batches that ended long ago. `created`: batches that wait to be created, or are in flight.

    `ends`: batches without callbacks that end with the next transaction, and their last states; `specs`: the same of
    batches whose callbacks are read first. `removals`: ended batches, and the shards that have not forgotten them."""

    def __init__(self, *, known: bool = True, restored: bool = False) -> None:
        self.known = known
        self.restored = restored
        self.loading = False
        self.live: dict[int, Home] = {}
        self.recent: dict[int, bytes] = {}
        self.times: list[tuple[int, int]] = []
        self.look_ms = NEVER_MS if known else 0
        self.created = 0
        self.creations: list[Creation] = []
        self.reports: list[Reported] = []
        self.turns: list[Turn] = []
        self.unknown: list[Reported | Turn | FindBatch] = []  # of batches whose rows are read
        self.held: list[Reported | Turn] = []  # of batches that are ending
        self.specs: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.removals: dict[int, set[int]] = {}
        self.removed: list[int] = []

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`. The times at which batches expire are stored."""
        self.look_ms = self.look_ms if self.look_ms == NEVER_MS else max(0, self.look_ms + by_ms)
        for number, home in self.live.items():
            if home.ask_ms != NEVER_MS:
                home.ask_ms += by_ms
                self.at(home.ask_ms, number)

    def at(self, at_ms: int, batch: int) -> None:
        """Look at a batch at that time."""
        heappush(self.times, (at_ms, batch))

    def ended(self, batch: int) -> None:
        """Forget a batch that has ended; late reports of its members find it in `recent`."""
        home = self.live.pop(batch)
        self.release()
        self.recent[batch] = home.row.ns
        while len(self.recent) > _MOST_RECENT:
            del self.recent[next(iter(self.recent))]

    def release(self) -> None:
        """Let the requests about batches that were ending wait for a transaction again."""
        held, self.held = self.held, []
        for one in held:
            if isinstance(one, Turn):
                self.turns.append(one)
            else:
                self.reports.append(one)

    @property
    def writes(self) -> bool:
        """Return True if the next transaction has something of this."""
        return self.known and bool(self.creations or self.reports or self.turns or self.ends or self.removed)

    @property
    def next_ms(self) -> int:
        """When there is something to read or to write; in the past means now."""
        if not self.known:
            return NEVER_MS if self.loading else 0
        if self.writes or self.specs or self.unknown:
            return 0
        return min(self.look_ms, self.times[0][0] if self.times else NEVER_MS)

    @property
    def ends_ms(self) -> int:
        """Return `next_ms` without the repeated questions about reports: O(live batches)."""
        if not self.known or self.writes or self.specs or self.unknown:
            return self.next_ms
        return min([home.row.expires_at_ms for home in self.live.values()], default=NEVER_MS)

    def take_waiting(self) -> list[Creation | Reported | Turn | FindBatch]:
        """Take out the requests that wait."""
        waiting = [*self.creations, *self.reports, *self.turns, *self.unknown, *self.held]
        self.creations, self.reports, self.turns, self.unknown, self.held = [], [], [], [], []
        return waiting
