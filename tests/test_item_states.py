"""The table of an item's states: each step that it has, each that it lacks, and that nothing goes past it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from foqs import item as states
from foqs.item import (
    BORN,
    IN_FLIGHT,
    NAMES,
    NEXT,
    NONE,
    WINDOW,
    Cause,
    Change,
    Changes,
    Given,
    Item,
    Known,
    Phase,
    Place,
    Step,
    To,
    WrongStep,
)
from tests.support import structure
from tests.support.lanes import lone_lane

ROOT = Path(__file__).parent.parent
LEASE, LATER_MS = 7, 900
TARGETS: dict[Step, tuple[To | None, ...]] = dict.fromkeys(Step, (None,)) | {
    Step.QUEUE: tuple(To),
    Step.COMMIT: tuple(To),
}
ALL = [(step, by) for step in Step for by in TARGETS[step]]


def reachable() -> set[tuple[Known, Changes]]:
    found: set[tuple[Known, Changes]] = set()
    todo = [(known, NONE) for known in BORN]
    while todo:
        state = todo.pop()
        if state not in found:
            found.add(state)
            (place, phase), changes = state
            for step, by in ALL:
                after = NEXT.get((step, by, place, phase, *changes))
                if after is not None:
                    todo.append(((after[0], after[1]), (after[2], after[3])))
    return found


STATES = sorted(reachable())


def item_in(known: Known, changes: Changes, in_flight_to: To = To.KEPT) -> Item:
    lane = lone_lane()
    item = Item(1, lane, 0, 0, 1, LEASE if known[1] is Phase.LEASED else 0, 0, None, *known)
    item.change = Change(item, To.KEPT, Cause.TTL) if changes[0] else None
    item.in_flight = Change(item, in_flight_to, Cause.ACK, due_ms=LATER_MS) if changes[1] else None
    return item


def take(item: Item, step: Step, by: To | None) -> None:
    """Call the method of `step`."""
    change = item.in_flight or Change(item, by or To.KEPT, Cause.ACK)
    if step is Step.SEND:
        change = item.change or change
    {
        Step.ENTER: item.enter_window,
        Step.LEAVE: item.leave_window,
        Step.LEASE: lambda: item.give_lease(LEASE, 10, Given(100, "")),
        Step.UNLEASE: item.unlease,
        Step.QUEUE: lambda: item.queue(Change(item, by or To.KEPT, Cause.ACK)),
        Step.WITHDRAW: item.withdraw,
        Step.SEND: lambda: item.send(change),
        Step.RETRY: item.retry,
        Step.DROP: item.drop,
        Step.COMMIT: lambda: item.commit(change),
    }[step]()


def state_of(item: Item) -> tuple[Place, Phase, bool, bool]:
    return (item.place, item.phase, item.change is not None, item.in_flight is not None)


@pytest.mark.parametrize(("step", "by"), ALL, ids=lambda one: one.name.lower() if one is not None else "")
def test_steps_follow_the_table(step: Step, by: To | None) -> None:
    taken = 0
    for known, changes in STATES:
        item = item_in(known, changes, by or To.KEPT)
        before = state_of(item)
        after = NEXT.get((step, by, *known, *changes))
        if after is None:
            with pytest.raises(WrongStep):
                take(item, step, by)
            assert state_of(item) == before
        else:
            take(item, step, by)
            assert state_of(item) == after
            taken += 1
    assert taken


def test_each_state_of_the_table_is_reached() -> None:
    assert {((key[2], key[3]), (key[4], key[5])) for key in NEXT} == set(STATES)


def test_an_item_in_a_window_has_no_change() -> None:
    """`give_lease` compares the phase only, because of this."""
    assert [changes for known, changes in STATES if known == WINDOW] == [NONE]


def test_a_change_that_waits_may_always_be_sent() -> None:
    """`send` does not ask the table, because of this."""
    assert {key[2:] for key in NEXT if key[0] is Step.SEND} == {
        (*known, *changes) for known, changes in STATES if changes[0] and not changes[1]
    }


def test_an_ack_of_a_lease_may_always_be_queued() -> None:
    """`ack_all` and `_changed` assign the parts of these two steps themselves."""
    for known in product(Place, (Phase.LEASED,)):
        assert (Step.QUEUE, To.GONE, *known, *NONE) in NEXT
        assert NEXT[(Step.COMMIT, To.GONE, *known, *IN_FLIGHT)][1:] == (Phase.IDLE, *NONE)


def test_a_wrong_step_says_which() -> None:
    with pytest.raises(WrongStep, match="COMMIT of a change to LEASED from idle and in_flight"):
        take(item_in((Place.READY, Phase.IDLE), IN_FLIGHT, To.LEASED), Step.COMMIT, To.LEASED)


PARTS = {"phase", "place", "change", "in_flight"}
OTHERS = {"self", "chunk", "part", "queue.keys", "queue", "key"}  # of the same names; `Item` itself is a `self`
INLINE = {
    ("foqs/engine/engine.py", "change"),
    ("foqs/engine/batch_build.py", "change"),
    ("foqs/engine/batch_build.py", "in_flight"),
    ("foqs/engine/batch_apply.py", "in_flight"),
    ("foqs/engine/batch_apply.py", "phase"),
    ("foqs/engine/batch_apply.py", "place"),
}


def test_only_items_assign_their_state() -> None:
    stores = {
        (str(path.relative_to(ROOT)), node.attr)
        for path in structure.files()
        if path.is_relative_to(ROOT / "foqs")
        for node in structure.nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in PARTS
        if ast.unparse(node.value) not in OTHERS
    }
    assert stores == INLINE


def diagram() -> str:
    """Return the table as a Mermaid diagram: an item in memory, and a change of its row."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step, moves in states._MOVES.items():
        for before, after in moves.items():
            arrows.setdefault((NAMES[before], NAMES[after]), []).append(step.name.lower())
    for by, commits in states._COMMITS.items():
        for before, after in commits.items():
            target = "[*]" if by is To.GONE else NAMES[after]
            if by is not To.KEPT:
                arrows.setdefault((NAMES[before], target), []).append(f"commit {by.name}")
    changes: dict[tuple[str, str], list[str]] = {}
    for step, steps in {Step.QUEUE: states._QUEUES, **states._CHANGES, Step.COMMIT: states._ENDS}.items():
        for had, has in steps.items():
            changes.setdefault((states._CHANGES_NAMES[had], states._CHANGES_NAMES[has]), []).append(step.name.lower())
    changes[states._CHANGES_NAMES[states.BOTH], states._CHANGES_NAMES[NONE]] = ["commit GONE"]
    born = [f"    [*] --> {name}" for known, name in NAMES.items() if known in BORN]
    return "\n".join(["```mermaid", "stateDiagram-v2", *born, *_lines(arrows), "", *_lines(changes), "```"])


def _lines(arrows: dict[tuple[str, str], list[str]]) -> Iterable[str]:
    return (f"    {before} --> {after}: {', '.join(labels)}" for (before, after), labels in arrows.items())


def test_the_diagram_is_the_tables() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    begin, end = "<!-- item states: begin -->\n", "\n<!-- item states: end -->"
    assert text.split(begin)[1].split(end)[0] == diagram()


def test_each_known_state_has_a_name() -> None:
    assert set(NAMES) == set(product(Place, Phase)) - {(Place.TIMER, Phase.WINDOW)}
