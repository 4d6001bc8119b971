"""The members of batches of items on a shard: new ones that wait for the homes of their batches, and counts to report.

`foqs.engine.batch_members` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.item_batches import Creation
from foqs.buffers.reads import Read
from foqs.buffers.shard_batch import Chunk

BEAT_MS = 250
"""How long changed counts wait before the homes hear of them."""
AGAIN_MS = 300
"""After a home that did not answer."""
JOIN_MS = 3_000
"""How long new members wait for a home that cannot be reached."""


@dataclass(eq=False, slots=True)
class Join:
    """New members that wait for the homes of `waits`. `counts`: by batch."""

    what: Chunk | Creation
    ns: str
    counts: Mapping[int, int]
    waits: set[int]
    until_ms: int


@dataclass(eq=False, slots=True)
class Forgetting:
    """A batch whose rows the shard removes, page by page. `done` is called when they are gone."""

    batch: int
    done: list[Callable[[], None]] = field(default_factory=list)
    ids: Sequence[int] = ()
    last: bool = False  # there is no member behind `ids`


class Members:
    """Of a shard with members. `due_ms`: when to look for unsent counts. `wanted`: batches whose counts are reported
    next, changed or not. `reporting`: batches whose report was not answered yet."""

    __slots__ = (
        "after", "again_ms", "due_ms", "forgetting", "forgotten", "joins", "leaving", "reads", "reporting", "sent",
        "serial", "sweeps", "wanted",
    )  # fmt: skip

    def __init__(self, due_ms: int = NEVER_MS) -> None:
        self.due_ms = due_ms
        self.again_ms = NEVER_MS  # when members that wait ask their homes again
        self.after = 0
        self.serial = 0
        self.joins: list[Join] = []
        self.wanted: dict[int, None] = {}
        self.reporting: set[int] = set()
        self.sent: list[tuple[int, int]] = []
        self.sweeps: dict[int, None] = {}
        self.forgetting: dict[int, Forgetting] = {}
        self.forgotten: list[Forgetting] = []  # whose `ids` the next transaction removes
        self.leaving: list[Forgetting] = []  # of the transaction in flight
        self.reads: list[Read] = []

    def note(self, at_ms: int) -> None:
        """Look for unsent counts at that time."""
        self.due_ms = min(self.due_ms, at_ms)

    def join(self, what: Chunk | Creation, counts: Mapping[int, int], ns: str, now_ms: int) -> None:
        """Let new members wait for the homes of their batches."""
        self.joins.append(Join(what, ns, counts, set(counts), now_ms + JOIN_MS))
        self.wanted.update(dict.fromkeys(counts))

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        self.due_ms = self.due_ms if self.due_ms == NEVER_MS else max(0, self.due_ms + by_ms)
        self.again_ms = self.again_ms if self.again_ms == NEVER_MS else max(0, self.again_ms + by_ms)
        for join in self.joins:
            join.until_ms += by_ms

    def take_chunks(self, of: Chunk | None = None) -> list[Chunk]:
        """Take out the items that wait; with `of`, the later parts of its request, whose items have order keys."""
        taken = [
            join for join in self.joins
            if not isinstance(join.what, Creation)
            and (of is None or (join.what.ordered and join.what is not of and join.what.request is of.request))
        ]  # fmt: skip
        self.joins = [join for join in self.joins if join not in taken]
        for join in taken:
            join.waits.clear()
        return [join.what for join in taken if not isinstance(join.what, Creation)]

    @property
    def writes(self) -> bool:
        """Return True if the next transaction has something of this."""
        return bool(self.sent or self.forgotten)

    @property
    def next_ms(self) -> int:
        """When there is something to read or to write; in the past means now."""
        return 0 if self.writes or self.wanted or self.reads else min(self.due_ms, self.again_ms)
