"""Keys to look at and to ask about: each once, at its time, and a bounded number in a turn."""

from __future__ import annotations

from itertools import count

import pytest

from foqs.limits.allowance import Allowance
from foqs.limits.gate import AT_ONCE, Agenda
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle

Key = ThrottleKey[str, str]
MANY = 2 * AT_ONCE + 10


class Rig:
    """`turns` counts the calls for another turn."""

    def __init__(self) -> None:
        self.turns = 0
        self.agenda: Agenda[ThrottleKey[str, str]] = Agenda(self._wanted)
        self.numbers = count(1)

    def _wanted(self) -> None:
        self.turns += 1

    def key(self) -> Key:
        return Key("shop", "api", Throttle(1, 1, False, "throttle.api"), 0, Allowance(0, self.numbers), 0)

    def keys(self) -> list[Key]:
        return [self.key() for _ in range(MANY)]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_key_is_asked_about_once(rig: Rig) -> None:
    key = rig.key()
    rig.agenda.ask(key)
    rig.agenda.ask(key)
    assert (rig.agenda.fresh(), rig.agenda.fresh(), rig.turns) == ([key], [], 1)
    rig.agenda.ask(key)  # it waits for its question still
    assert (rig.agenda.fresh(), key in rig.agenda) == ([], True)
    rig.agenda.asked(key)
    assert key not in rig.agenda


def test_a_key_is_looked_at_when_it_is_due(rig: Rig) -> None:
    late, early = rig.key(), rig.key()
    rig.agenda.settle_at(late, 50)
    rig.agenda.settle_at(early, 20)
    rig.agenda.settle_at(late, 60)  # it is looked at earlier
    assert (rig.agenda.next_ms(), rig.agenda.due(19)) == (20, [])
    assert rig.agenda.due(20) == [early]
    rig.agenda.settle_at(late, 30)
    assert rig.agenda.due(100) == [late]
    assert (rig.agenda.due(100), rig.agenda.next_ms()) == ([], None)


def test_a_turn_asks_about_some_keys(rig: Rig) -> None:
    keys = rig.keys()
    for key in keys:
        rig.agenda.ask(key)
    asked = [rig.agenda.fresh()]
    while rig.turns > MANY + len(asked) - 1:
        asked.append(rig.agenda.fresh())
    assert list(map(len, asked)) == [AT_ONCE, AT_ONCE, 10]
    assert [key for part in asked for key in part] == keys


@pytest.mark.parametrize("timed", [True, False])
def test_a_turn_looks_at_some_keys(rig: Rig, timed: bool) -> None:
    keys = rig.keys()
    for key in keys:
        rig.agenda.settle_at(key, 5) if timed else rig.agenda.settle_soon(key)
    first = rig.agenda.due(7)
    assert first == keys[:AT_ONCE]
    assert rig.agenda.next_ms() == (5 if timed else None)
    assert rig.turns == (1 if timed else MANY + 1)
    assert first + rig.agenda.due(7) + rig.agenda.due(7) + rig.agenda.due(7) == keys


def test_nothing_is_scheduled_while_a_question_is_open(rig: Rig) -> None:
    key = rig.key()
    key.park("t", "flow", 0.0, 0, 1, 0)
    rig.agenda.schedule(key, 0)
    assert rig.agenda.fresh() == [key]
    rig.agenda.asked(key)
    assert key.ask(1, 0, 1) is not None
    rig.agenda.schedule(key, 0)
    assert (rig.agenda.fresh(), rig.agenda.next_ms()) == ([], None)


def test_a_dry_key_is_looked_at_when_it_may_have_tokens(rig: Rig) -> None:
    key = rig.key()
    key.park("t", "flow", 0.0, 0, 1, 0)
    key.due_ms = 30
    rig.agenda.schedule(key, 0)
    assert (rig.agenda.fresh(), rig.agenda.next_ms()) == ([], 30)
