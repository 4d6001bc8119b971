"""What clients did with batches of items and saw of them, from their journals; and what databases hold of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from foqs.item_batch import Counts
from foqs_lab.cluster import Shard
from foqs_lab.crash.batch_process import INVALID, kind_of
from foqs_lab.crash.history import Answer
from foqs_lab.crash.losses import NEVER


class Call(NamedTuple):
    """A callback came: a request between `began` and `ended` (ns) got it. The hosts' clock says `stored_ms`."""

    began: int
    ended: int
    kind: str
    id: int
    stored_ms: int
    headers: dict[str, str]


@dataclass
class Story:
    """What clients know of one batch. `ids`: members that were stored, or came. `acks`: when those were sent that may
    have ended a member, by id and lease; `over`: when one was answered; `came`: when the last dequeue began that got a
    member. `refused`: members (seq, tried) that must not come. `invalid`: when the answers came that the batch takes no
    members."""

    name: str
    id: int = 0
    parent: str = ""
    ids: set[int] = field(default_factory=set)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    unknown: int = 0
    refused: set[tuple[int, int]] = field(default_factory=set)
    invalid: list[int] = field(default_factory=list)
    acks: dict[tuple[int, int], int] = field(default_factory=dict)
    came: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    closed_ns: int = 0
    cancelled_ns: int = NEVER
    last_end_ns: int = 0
    lies: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    def acked(self) -> dict[int, int]:
        """Return when the members may have ended first."""
        found: dict[int, int] = {}
        for (item_id, _), began in self.acks.items():
            found[item_id] = min(began, found.get(item_id, NEVER))
        return found


class Seen:
    """The journals as stories by the names of batches. `calls` are by the ids that their headers say. `lost`: batches
    that may have been created, whose ids no client knows."""

    def __init__(self) -> None:
        self.stories: dict[str, Story] = {}
        self.calls: defaultdict[int, list[Call]] = defaultdict(list)
        self.lost = 0
        self.stored = 0
        self.counts: Counter[str] = Counter()
        self._of: dict[int, Story] = {}

    def take(self, lines: Iterable[Sequence[Any]]) -> None:
        for what, began, *values in lines:
            if what == "got":
                self._got(began, *values)
            elif what in ("ack", "nack"):
                self._sent(what, began, *values)
            elif what in ("acked", "nacked"):
                self._answered(what, began, *values)
            elif what == "called":
                self._called(began, *values)
            else:
                ended, name, *rest = values
                story = self.stories.setdefault(name, Story(name))
                if what == "put":
                    self._put(story, ended, *rest)
                elif what == "create":
                    self._created(story, *rest)
                else:
                    self._turned(story, what, began, ended, *rest)

    def _created(self, story: Story, answer: str, batch: int, parent: str) -> None:
        self.counts[f"creations {answer}"] += 1
        self.lost += answer == Answer.UNKNOWN
        if answer == Answer.OK:
            story.id, story.parent = batch, parent

    def _turned(self, story: Story, what: str, began: int, ended: int, answer: str) -> None:
        self.counts[f"{what} {answer}"] += 1
        if what == "close" and answer == Answer.OK:
            story.closed_ns = ended
        elif what == "cancel":
            story.cancelled_ns = min(story.cancelled_ns, began)

    def _put(self, story: Story, ended: int, answers: Sequence[Sequence[Any]]) -> None:
        for seq, tried, answer, item_id in answers:
            self.counts[f"enqueues {answer}"] += 1
            if answer == Answer.OK:
                self._has(story, seq, tried, item_id)
            elif answer == Answer.UNKNOWN:
                story.unknown += 1
            elif story.kind != "keys":  # a key may have been stored before
                story.refused.add((seq, tried))
            if answer == INVALID:
                story.invalid.append(ended)

    def _has(self, story: Story, seq: int, tried: int, item_id: int) -> None:
        if story.numbers.setdefault((seq, tried), item_id) != item_id:
            story.lies.append(f"member {seq}, {tried} is the items {story.numbers[seq, tried]} and {item_id}")
        if item_id not in self._of:
            self._of[item_id] = story
            story.ids.add(item_id)
            self.stored += 1

    def _got(self, began: int, ended: int, items: Sequence[Sequence[Any]]) -> None:
        self.counts["delivered"] += len(items)
        for name, seq, tried, item_id, _ in items:
            story = self.stories.setdefault(name, Story(name))
            self._has(story, seq, tried, item_id)
            story.came[item_id] = max(began, story.came.get(item_id, 0))

    def _sent(self, what: str, began: int, leases: Sequence[tuple[int, int]]) -> None:
        for item_id, lease in leases if what == "ack" else ():
            self._of[item_id].acks.setdefault((item_id, lease), began)

    def _answered(self, what: str, ended: int, answers: Sequence[Sequence[Any]]) -> None:
        for item_id, lease, answer in answers:
            self.counts[f"{what} {answer}"] += 1
            story = self._of[item_id]
            if answer == Answer.OK:
                story.last_end_ns = max(story.last_end_ns, ended)
                if what == "acked":
                    story.over[item_id] = min(ended, story.over.get(item_id, NEVER))
            elif what == "acked" and answer != Answer.UNKNOWN:
                story.acks.pop((item_id, lease), None)

    def _called(self, began: int, ended: int, calls: Sequence[Sequence[Any]]) -> None:
        for name, kind, item_id, stored_ms, headers in calls:
            of = int(headers["foqs-batch"])
            self.counts["callbacks delivered again"] += any(one.id == item_id for one in self.calls[of])
            self.calls[of].append(Call(began, ended, kind, item_id, stored_ms, {**headers, "name": name}))


class Row(NamedTuple):
    """The row of `item_batch`."""

    id: int
    state: int
    expires_at_ms: int
    ended_at_ms: int
    parent: int
    success_id: int
    end_id: int


_ROWS_SQL = "SELECT id, state, expires_at, ended_at, parent, success_id, end_id FROM item_batch"
_COUNTS = ", ".join(f"SUM({name})" for name in Counts._fields)


@dataclass
class Kept:
    """What all databases hold at the end. `parts`: what the homes know of members; `counted`: what their shards do.
    `dead`: members that are dead letters, by batch; `waiting`: members with a row that have not ended."""

    rows: dict[int, Row] = field(default_factory=dict)
    parts: dict[int, Counts] = field(default_factory=dict)
    counted: dict[int, Counts] = field(default_factory=dict)
    dead: dict[int, list[int]] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, shards: Sequence[Shard]) -> Kept:
        kept = cls()
        for shard in shards:
            ask = partial(shard.server.query, database=shard.database)
            kept.rows.update({row[0]: Row._make(row) for row in ask(_ROWS_SQL)})
            _add(kept.parts, ask(f"SELECT batch, {_COUNTS} FROM batch_part GROUP BY batch"))
            _add(kept.counted, ask(f"SELECT batch, {_COUNTS} FROM batch_count GROUP BY batch"))
            dead = ask("SELECT item.batch, item.id FROM item JOIN failure ON failure.id = item.id")
            for batch, item_id in dead:
                kept.dead.setdefault(batch, []).append(item_id)
            kept.waiting += [batch for (batch,) in ask("SELECT batch FROM member WHERE dead = 0")]
        return kept

    def children(self) -> Mapping[int, list[Row]]:
        found: defaultdict[int, list[Row]] = defaultdict(list)
        for row in self.rows.values():
            found[row.parent].append(row)
        return found


def _add(to: dict[int, Counts], rows: Iterable[Sequence[Any]]) -> None:
    for batch, *counts in rows:
        to[batch] = to.get(batch, Counts()).plus(Counts(*map(int, counts)))


LIVE_SQL = "SELECT (SELECT COUNT(*) FROM item) - (SELECT COUNT(*) FROM failure)"
OPEN_SQL = "SELECT COUNT(*) FROM item_batch WHERE ended_at = 0"


def count(shards: Sequence[Shard], sql: str) -> int:
    """Return the sum of a number that each database has."""
    return sum(int(shard.server.query(sql, database=shard.database)[0][0]) for shard in shards)
