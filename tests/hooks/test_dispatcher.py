"""Which calls run next, and where each outcome goes: in memory, with processes that the test plays."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.hooks.call_queues import OPEN_MS, PROBATION_CALLS, QUICK_US, UNBOUNDED, Known, Portion, Waiting
from foqs.hooks.dispatcher import Dispatcher
from foqs.hooks.frames import FLUSH_CALLS, NAMESPACES, SCRIPTS
from foqs.hooks.protocol import Answered, Entries, Failed, Hook, HookCall, HookKey, Kind, Outcome, Script
from tests.hooks.rig import GOOD, ITEM, call_of

TIMEOUT_MS = 10


class Rig:
    """A dispatcher, with the outcomes of its calls in the order of `add`."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome | None] = []
        self.now_ms = 0
        self.opened: list[HookKey] = []
        self.dispatcher = Dispatcher(Limits(), self._resolve, lambda key, script, failure: self.opened.append(key))

    def _resolve(self, waiting: Waiting, outcome: Outcome) -> None:
        assert self.outcomes[waiting.at] is None, "a call has two outcomes"
        self.outcomes[waiting.at] = outcome

    def add(self, topic: str = "jobs", count: int = 1, **given: Any) -> list[Waiting]:
        added = []
        for _ in range(count):
            waiting = Waiting(call_of(GOOD, topic, **given), None, len(self.outcomes))
            self.outcomes.append(None)
            self.dispatcher.add([waiting], self.now_ms, UNBOUNDED)
            added.append(waiting)
        return added

    def portion(self, *, suspects: bool) -> Portion | None:
        return self.dispatcher.portion(TIMEOUT_MS, self.now_ms, suspects=suspects)

    def reply(self, portion: Portion, replies: list[Any], *, skip: bool = False) -> None:
        calls, rest = portion.calls[: len(replies)], portion.calls[len(replies) :]
        portion.calls = [] if skip else rest
        self.dispatcher.replied(portion, calls, replies, rest if skip else [], self.now_ms, 0)

    def serve(self, elapsed_us: int, *, suspects: bool) -> str | None:
        """Run the next portion. Return its topic."""
        portion = self.portion(suspects=suspects)
        if portion is None:
            return None
        self.reply(portion, [[elapsed_us, 0, {}]] * len(portion.calls))
        return portion.queue.key.topic

    def prove(self, topic: str) -> None:
        self.add(topic, PROBATION_CALLS)
        while self.serve(10, suspects=True):
            pass

    @property
    def kinds(self) -> Counter[str]:
        return Counter(
            "none" if one is None else "answered" if isinstance(one, Answered) else one.kind for one in self.outcomes
        )


def test_a_new_script_is_a_suspect_until_it_was_quick() -> None:
    rig = Rig()
    rig.add(count=100)
    assert rig.portion(suspects=False) is None
    portion = rig.portion(suspects=True)
    assert portion is not None
    assert len(portion.calls) == 1
    assert rig.portion(suspects=True) is None, "a suspect has one message in flight"
    rig.reply(portion, [[10, 0, {}]])
    assert rig.serve(10, suspects=True) == "jobs"
    assert rig.portion(suspects=True) is None
    one, two = rig.portion(suspects=False), rig.portion(suspects=False)
    assert one is not None
    assert two is not None
    assert len(one.calls) == len(two.calls) == FLUSH_CALLS
    assert rig.portion(suspects=False) is None, "one message waits while one runs"


def test_a_slow_or_changed_script_is_a_suspect_again() -> None:
    for elapsed_us, changed in ((6 * QUICK_US, False), (10, True)):
        rig = Rig()
        rig.prove("jobs")
        rig.add()
        assert rig.serve(elapsed_us, suspects=False) == "jobs"
        if changed:
            waiting = Waiting(call_of("-- another\n" + GOOD), None, len(rig.outcomes))
            rig.outcomes.append(None)
            rig.dispatcher.add([waiting], 0, UNBOUNDED)
        else:
            rig.add()
        assert rig.serve(10, suspects=False) is None
        assert rig.serve(10, suspects=True) == "jobs"


def test_replies_of_the_script_before_prove_nothing() -> None:
    rig = Rig()
    rig.prove("jobs")
    rig.add(count=FLUSH_CALLS)
    portion = rig.portion(suspects=False)
    assert portion is not None
    waiting = Waiting(call_of("-- another\n" + GOOD), None, len(rig.outcomes))
    rig.outcomes.append(None)
    rig.dispatcher.add([waiting], 0, UNBOUNDED)
    rig.reply(portion, [[10, 0, {}]] * len(portion.calls))
    assert rig.portion(suspects=False) is None
    assert rig.serve(10, suspects=True) == "jobs"


def test_calls_that_are_over_are_forgotten_without_a_process() -> None:
    rig = Rig()
    for waiting in rig.add(count=100):
        rig.dispatcher.resolve(waiting, Failed(Kind.UNAVAILABLE, "too late"))
    (queue,) = rig.dispatcher._queues.values()
    assert (len(queue.calls), rig.dispatcher.queued, queue.idle) == (0, 0, True)


def test_a_script_is_proven_for_all_topics() -> None:
    rig = Rig()
    rig.prove("jobs")
    rig.add("another", 40)
    portion = rig.portion(suspects=False)
    assert portion is not None
    assert len(portion.calls) == FLUSH_CALLS
    rig.dispatcher.ended([portion], 0, 0, killed=True)
    rig.add("a third")
    assert rig.portion(suspects=False) is None


def test_topics_take_turns_by_the_time_they_take() -> None:
    rig = Rig()
    rig.add("slow", 600)
    rig.add("slower", 600)
    spent = Counter[str]()
    for _ in range(200):
        portion = rig.portion(suspects=True)
        assert portion is not None
        topic = portion.queue.key.topic
        elapsed_us = 3_000 if topic == "slow" else 9_000
        rig.reply(portion, [[elapsed_us, 0, {}]] * len(portion.calls))
        spent[topic] += elapsed_us
        assert abs(spent["slow"] - spent["slower"]) <= 9_000 + 3_000


def test_a_topic_without_calls_saves_up_no_turns() -> None:
    rig = Rig()
    rig.add("busy", 500)
    for _ in range(100):
        assert rig.serve(5_000, suspects=True) == "busy"
    rig.add("late", 100)
    turns = [rig.serve(5_000, suspects=True) for _ in range(20)]
    assert 9 <= turns.count("late") <= 11


def test_calls_that_did_not_run_come_before_later_ones() -> None:
    rig = Rig()
    rig.prove("jobs")
    first = rig.add(count=40)
    portion = rig.portion(suspects=False)
    assert portion is not None
    assert portion.calls == first[:FLUSH_CALLS]
    rig.reply(portion, [[10, 0, {}]] * 5, skip=True)
    portion = rig.portion(suspects=False)
    assert portion is not None
    assert portion.calls == first[5 : 5 + FLUSH_CALLS]


def test_a_message_has_one_script_and_one_version() -> None:
    rig = Rig()
    rig.prove("jobs")
    old, new = Entries("shop", {}), Entries("shop", {})
    rig.add(count=3, entries=old)
    rig.add(count=2, entries=new)
    sizes = []
    while (portion := rig.portion(suspects=False)) is not None:
        sizes.append(len(portion.calls))
        rig.reply(portion, [[10, 0, {}]] * len(portion.calls))
    assert sizes == [3, 2]


def test_the_killed_call_is_found_among_its_neighbours() -> None:
    rig = Rig()
    rig.prove("jobs")
    stuck = rig.add(count=FLUSH_CALLS)[-1]
    kills = 0
    while (portion := rig.portion(suspects=False) or rig.portion(suspects=True)) is not None:
        if stuck in portion.calls:
            kills += 1
            rig.dispatcher.ended([portion], 0, 0, killed=True)
            assert rig.portion(suspects=False) is None, "its script is a suspect"
        else:
            rig.reply(portion, [[10, 0, {}]] * len(portion.calls))
    assert kills == 2
    assert rig.kinds == {"answered": PROBATION_CALLS + FLUSH_CALLS - 1, Kind.KILLED: 1}


def test_a_process_that_ends_by_itself_blames_no_call_at_once() -> None:
    rig = Rig()
    rig.add()
    portion = rig.portion(suspects=True)
    assert portion is not None
    assert rig.dispatcher.ended([portion], 0, 0, killed=False) == portion.calls[0].call
    portion = rig.portion(suspects=True)
    assert portion is not None
    rig.dispatcher.ended([portion], 0, 0, killed=False)
    assert rig.kinds == {Kind.KILLED: 1}
    assert rig.dispatcher.ended([], 0, 0, killed=False) is None


def test_an_opening_breaker_ends_the_calls_that_wait() -> None:
    rig = Rig()
    rig.add(count=50)
    rig.add("another topic")
    for _ in range(4):
        portion = rig.portion(suspects=True)
        assert portion is not None
        if portion.queue.key.topic == "jobs":
            rig.reply(portion, [[20_000, 0, "timeout", "late"]], skip=True)
        else:
            rig.reply(portion, [[10, 0, {}]])
    assert rig.kinds == {Kind.TIMEOUT: 3, Kind.OPEN: 47, "answered": 1}
    assert [key.topic for key in rig.opened] == ["jobs"]
    rig.now_ms += OPEN_MS
    rig.add(count=5)
    portion = rig.portion(suspects=True)
    assert portion is not None
    assert len(portion.calls) == 1
    assert rig.portion(suspects=True) is None, "the other calls wait for the one that is tried"
    rig.reply(portion, [[10, 0, {}]])
    assert rig.serve(10, suspects=True) == "jobs"


def test_a_tried_call_is_repeated_when_its_process_ends() -> None:
    rig = Rig()
    rig.add(count=3)
    while (portion := rig.portion(suspects=True)) is not None:
        rig.reply(portion, [[10, 0, "error", "x"]] * len(portion.calls))
    rig.now_ms += OPEN_MS
    rig.add()
    for _ in range(2):
        portion = rig.portion(suspects=True)
        assert portion is not None
        rig.dispatcher.ended([portion], rig.now_ms, 0, killed=False)
    assert rig.kinds == {Kind.ERROR: 3, Kind.KILLED: 1}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "expire", "send", "reply", "skip", "fail", "kill", "end", "time"]),
        st.integers(0, 3),
        st.integers(1, 60),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_call_has_one_outcome_and_no_count_drifts(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens in any order. At the end all calls that are left run."""
    rig = Rig()
    processes: list[list[Portion]] = [[], []]
    added: list[Waiting] = []

    def played(step: str, number: int, size: int) -> None:
        in_flight = processes[number % 2]
        if step == "add":
            added.extend(rig.add(f"topic {number}", size, guarded=number < 3))
        elif step == "expire":
            for waiting in added[-size:]:
                rig.dispatcher.resolve(waiting, Failed(Kind.UNAVAILABLE, "late"))
        elif step == "time":
            rig.now_ms += size * 500
        elif step == "send":
            if (portion := rig.portion(suspects=bool(number % 2))) is not None:
                assert 1 <= len(portion.calls) <= FLUSH_CALLS
                in_flight.append(portion)
        elif not in_flight:
            return
        elif step in ("kill", "end"):
            rig.dispatcher.ended(in_flight, rig.now_ms, 0, killed=step == "kill")
            in_flight.clear()
        else:
            portion = in_flight[0]
            size = min(size, len(portion.calls))
            replies: list[Any] = [[size * 100, 0, {}]] * size
            if step == "fail":
                replies[-1] = [10_500, 0, "timeout", "late"]
            rig.reply(portion, replies, skip=step in ("skip", "fail"))
            if not portion.calls:
                in_flight.pop(0)

    for step in steps:
        played(*step)
        assert rig.dispatcher.queued == sum(waiting.queued for waiting in added)
    for _ in range(2 * len(added) + 4):
        for number in (0, 1):
            played("send", number, 1)
            played("reply", number, FLUSH_CALLS)
    assert all(rig.outcomes)
    assert rig.dispatcher.queued == 0
    assert all(queue.idle for queue in rig.dispatcher._queues.values())


def test_idle_hooks_are_forgotten_beyond_the_bound() -> None:
    rig = Rig()
    for number in range(10_200):
        rig.add(f"topic {number}")
        rig.serve(10, suspects=True)
    assert len(rig.dispatcher._queues) <= 10_000
    assert rig.dispatcher.breaker(HookKey("shop", "topic 0", Hook.ON_ENQUEUE)) is None
    assert rig.dispatcher.breaker(HookKey("shop", "topic 10199", Hook.ON_ENQUEUE)) is not None


# ------------------------------------------------------------------------------------- what a process knows


def waiting_of(ns: str, source: str, entries: Entries) -> Waiting:
    return Waiting(HookCall(Script(ns, "s", source), HookKey(ns, "t", Hook.ON_ENQUEUE), ITEM, entries), None, 0)


def test_a_process_gets_scripts_and_settings_once() -> None:
    known, entries = Known(), Entries("shop", {"plans/acme": "gold"})
    texts, _ = known.messages([waiting_of("shop", GOOD, entries)], TIMEOUT_MS)
    assert [json.loads(text)[0] for text in texts] == ["entries", "script", "run"]
    texts, extra_ms = known.messages([waiting_of("shop", GOOD, entries)] * 3, TIMEOUT_MS)
    columns = [[value] * 3 for value in ITEM.values()]
    assert json.loads(texts[0]) == ["run", 2, 1, "on_enqueue", TIMEOUT_MS, [*ITEM], columns, 3]
    assert (len(texts), extra_ms) == (1, 0)
    texts, extra_ms = known.messages([waiting_of("shop", GOOD, Entries("shop", {"k": "x" * 50_000}))], TIMEOUT_MS)
    assert [json.loads(text)[0] for text in texts] == ["forget_entries", "entries", "run"]
    assert extra_ms == 10


MANY = [(number, number % (NAMESPACES + 6), number % 3) for number in range(2 * SCRIPTS)]
CALLS = st.lists(
    st.tuples(st.integers(0, SCRIPTS + 9), st.integers(0, NAMESPACES + 5), st.integers(0, 2)), max_size=250
)


@example(MANY)
@given(CALLS)
def test_a_process_never_lacks_what_a_call_needs(calls: list[tuple[int, int, int]]) -> None:
    """And holds no more than the bounds."""
    known, scripts, entries = Known(), dict[int, str](), dict[int, dict[str, str]]()
    versions = {
        (ns, version): Entries(f"ns{ns}", {"v": f"{ns} {version}"})
        for ns in range(NAMESPACES + 6)
        for version in range(3)
    }
    for script, ns, version in calls:
        texts, _ = known.messages([waiting_of(f"ns{ns}", f"-- {script}", versions[ns, version])], TIMEOUT_MS)
        for text in texts:
            match json.loads(text):
                case ["script", number, _, source]:
                    scripts[number] = source
                case ["entries", number, values]:
                    entries[number] = values
                case ["forget_script", number]:
                    del scripts[number]
                case ["forget_entries", number]:
                    del entries[number]
                case ["run", script_number, entries_number, *_]:
                    assert scripts[script_number] == f"-- {script}"
                    assert entries[entries_number] == {"v": f"{ns} {version}"}
        assert len(scripts) <= SCRIPTS
        assert len(entries) <= NAMESPACES
