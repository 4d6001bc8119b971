"""The states of an item in memory, as one table.

A state has three parts: the table of the database that holds the item's row (`Place`), what the host does with the item
(`Phase`), and whether a change of the row waits or is in flight. `Step` names what may happen; `NEXT` says where each
step leads. A step that `NEXT` lacks is a defect of the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import product


class Place(IntEnum):
    """The table that holds the item's row, according to the last committed transaction."""

    READY = 1  # or none: an unindexed item is ready (`Item.unindexed`)
    TIMER = 2


class Phase(IntEnum):
    """What the host may do with the item."""

    IDLE = 1  # neither in a window nor leased: known only because of a change
    WINDOW = 2  # in its lane's ready window: may be leased
    LEASED = 3  # a consumer has it; `lease` is the token


class To(IntEnum):
    """Where a change moves the item's row."""

    GONE = 1  # removed: acked, deleted, TTL over, at-most-once lease over
    READY = 2  # may be leased again: lease over, nacked without delay, delay over
    DELAYED = 3  # nacked with a delay
    LEASED = 4  # writes the lease as it stands in memory (first written, or extended)
    KEPT = 5  # stays where it is; only its TTL is put off until its lease ends (due_ms)
    MOVED = 6  # ready in the lane of another topic of its shard: a dead letter, or one that returns


class Step(IntEnum):
    ENTER = 1  # the item enters its lane's window
    LEAVE = 2  # the window forgets the item, or the item may not be leased any more
    LEASE = 3  # a consumer gets the item
    UNLEASE = 4  # the lease ends before it was written
    QUEUE = 5  # a change waits for the next transaction; it replaces one that waits
    WITHDRAW = 6  # the waiting change is dropped
    SEND = 7  # the waiting change becomes part of a transaction
    RETRY = 8  # the transaction certainly failed: its change waits again
    DROP = 9  # the change in flight ends without effect: refused, or replaced by the one that waits
    COMMIT = 10  # the change in flight is in the database


Known = tuple[Place, Phase]
Changes = tuple[bool, bool]
"""Whether a change waits, and whether one is in flight."""

IDLE = (Place.READY, Phase.IDLE)
WINDOW = (Place.READY, Phase.WINDOW)
UNWRITTEN = (Place.READY, Phase.LEASED)
DELAYED = (Place.TIMER, Phase.IDLE)
WRITTEN = (Place.TIMER, Phase.LEASED)
NAMES: dict[Known, str] = {
    IDLE: "idle",
    WINDOW: "window",
    UNWRITTEN: "leased",
    DELAYED: "delayed",
    WRITTEN: "lease_written",
}
NONE, WAITING, IN_FLIGHT, BOTH = (False, False), (True, False), (False, True), (True, True)
_CHANGES_NAMES: dict[Changes, str] = {
    NONE: "no_change",
    WAITING: "waiting",
    IN_FLIGHT: "in_flight",
    BOTH: "in_flight_and_waiting",
}

# Steps between states that are not committed: from, to. The item has no change, before and after.
_MOVES: dict[Step, dict[Known, Known]] = {
    Step.ENTER: {IDLE: WINDOW},
    Step.LEAVE: {WINDOW: IDLE},
    Step.LEASE: {WINDOW: UNWRITTEN},
    Step.UNLEASE: {UNWRITTEN: IDLE},
}
# Where a change may begin, and where its commit leads. A row that is gone leaves an idle item for a moment.
_COMMITS: dict[To, dict[Known, Known]] = {
    To.GONE: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: DELAYED, WRITTEN: DELAYED},
    To.READY: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: IDLE, WRITTEN: IDLE},
    To.DELAYED: {IDLE: DELAYED, UNWRITTEN: DELAYED, WRITTEN: DELAYED},
    To.LEASED: {UNWRITTEN: WRITTEN, WRITTEN: WRITTEN},
    To.MOVED: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: IDLE, WRITTEN: IDLE},
    To.KEPT: {UNWRITTEN: UNWRITTEN, WRITTEN: WRITTEN},
}
_QUEUES: dict[Changes, Changes] = {NONE: WAITING, WAITING: WAITING, IN_FLIGHT: BOTH, BOTH: BOTH}
_ENDS: dict[Changes, Changes] = {IN_FLIGHT: NONE, BOTH: WAITING}
_CHANGES: dict[Step, dict[Changes, Changes]] = {
    Step.WITHDRAW: {WAITING: NONE, BOTH: IN_FLIGHT},
    Step.SEND: {WAITING: IN_FLIGHT},
    Step.RETRY: {IN_FLIGHT: WAITING},
    Step.DROP: _ENDS,
}

BORN = frozenset(NAMES) - {UNWRITTEN}
"""States in which an item is created; an unwritten lease cannot be read from the database."""

Key = tuple[Step, To | None, Place, Phase, bool, bool]
NEXT: dict[Key, tuple[Place, Phase, bool, bool]] = {}
for _step, _moves in _MOVES.items():
    for _from, _to in _moves.items():
        NEXT[(_step, None, *_from, *NONE)] = (*_to, *NONE)
for _step, _changes in _CHANGES.items():
    for _from, (_before, _after) in product(frozenset(NAMES) - {WINDOW}, _changes.items()):
        NEXT[(_step, None, *_from, *_before)] = (*_from, *_after)
for _by, _commits in _COMMITS.items():
    for _from, _to in _commits.items():
        for _before, _after in _QUEUES.items():
            NEXT[(Step.QUEUE, _by, *_from, *_before)] = (*_from, *_after)
        for _before, _after in _ENDS.items():
            NEXT[(Step.COMMIT, _by, *_from, *_before)] = (*_to, *(NONE if _by is To.GONE else _after))


class WrongStep(AssertionError):
    """A step that the table of states lacks."""


def check(step: Step, by: To | None, place: Place, phase: Phase, waiting: bool, in_flight: bool) -> tuple[Place, Phase]:
    """Return where `step` leads. Raises WrongStep. `by`: what a queued or committed change does."""
    found = NEXT.get((step, by, place, phase, waiting, in_flight))
    if found is None:
        change = f" of a change to {by.name}" if by is not None else ""
        state = (
            f"{NAMES[place, phase]} and {_CHANGES_NAMES[waiting, in_flight]}" if (place, phase) in NAMES else "unknown"
        )
        raise WrongStep(f"{step.name}{change} from {state}")
    return found[0], found[1]


def diagram() -> str:
    """The table as a Mermaid diagram: an item in memory, and a change of its row."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step, moves in _MOVES.items():
        for before, after in moves.items():
            arrows.setdefault((NAMES[before], NAMES[after]), []).append(step.name.lower())
    for by, commits in _COMMITS.items():
        for before, after in commits.items():
            target = "[*]" if by is To.GONE else NAMES[after]
            if by is not To.KEPT:
                arrows.setdefault((NAMES[before], target), []).append(f"commit {by.name}")
    changes: dict[tuple[str, str], list[str]] = {}
    for step, steps in {Step.QUEUE: _QUEUES, **_CHANGES, Step.COMMIT: _ENDS}.items():
        for had, has in steps.items():
            changes.setdefault((_CHANGES_NAMES[had], _CHANGES_NAMES[has]), []).append(step.name.lower())
    changes[_CHANGES_NAMES[BOTH], _CHANGES_NAMES[NONE]] = ["commit GONE"]
    born = [f"    [*] --> {name}" for known, name in NAMES.items() if known in BORN]
    return "\n".join(["```mermaid", "stateDiagram-v2", *born, *_lines(arrows), "", *_lines(changes), "```"])


def _lines(arrows: dict[tuple[str, str], list[str]]) -> Iterable[str]:
    return (f"    {before} --> {after}: {', '.join(labels)}" for (before, after), labels in arrows.items())
