"""The checkpoint never skips a row: scans from it, with inserts, failures and rows left behind, find every one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.buffers.checkpoint import NEVER_MS, RETRY_MS, Checkpoint, Range
from tests.support.examples import examples

LIMIT = 3


class ScanWithCheckpoint(RuleBasedStateMachine):
    """`rows` is the index: id -> time. A scan reads, then its rows are handled one by one while rows are inserted."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100
        self.rows: dict[int, int] = {1: 10, 2: 40, 3: 90}  # what an earlier owner left, its checkpoint wrongly at 50
        self.next_id = 4
        self.checkpoint = Checkpoint(50)
        self.found: list[tuple[int, int]] | None = None
        self.resumes = True

    @rule(resumes=st.booleans())
    def resume(self, resumes: bool) -> None:
        self.resumes = resumes

    @rule(in_ms=st.integers(-30, 60))
    def insert(self, in_ms: int) -> None:
        at_ms = max(0, self.now + in_ms)
        self.rows[self.next_id] = at_ms
        self.next_id += 1
        self.checkpoint.inserted(at_ms)

    @rule(ms=st.integers(1, 80))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @precondition(lambda self: self.found is None and self.checkpoint.due_ms <= self.now)
    @rule(fails=st.booleans())
    def scan(self, fails: bool) -> None:
        wanted = self.checkpoint.begin(self.now)
        if fails:
            self.checkpoint.failed(self.now)
            return
        begin = (wanted.from_ms, wanted.after_id)
        inside = sorted((at, i) for i, at in self.rows.items() if begin < (at, i) and at <= wanted.to_ms)
        later = [at for at in self.rows.values() if at > wanted.to_ms]
        self.found = inside[:LIMIT]
        complete = len(inside) <= LIMIT
        self.checkpoint.outstanding = len(self.found)
        last_ms, last_id = self.found[-1] if self.found else (0, 0)
        self.checkpoint.read(last_ms, complete, min(later, default=0), last_id if self.resumes else 0)
        self.finish()

    @precondition(lambda self: self.found)
    @rule(left=st.booleans())
    def handle(self, left: bool) -> None:
        assert self.found is not None
        at_ms, item_id = self.found.pop()
        if left:
            self.checkpoint.left(at_ms)
        else:
            del self.rows[item_id]
        self.checkpoint.outstanding -= 1
        self.finish()

    def finish(self) -> None:
        if not self.checkpoint.outstanding:
            self.checkpoint.finish(self.now)
            self.found = None

    @invariant()
    def nothing_is_skipped(self) -> None:
        """A scan comes soon after the earliest row is due."""
        earliest = min(self.rows.values(), default=NEVER_MS)
        assert self.found is not None or self.checkpoint.due_ms <= max(earliest, self.now + RETRY_MS)

    def teardown(self) -> None:
        """Left alone, the scans find all that is due."""
        while self.found:
            self.handle(left=False)
        for _ in range(10 * len(self.rows) + 20):
            if self.checkpoint.due_ms > self.now:
                self.now += 60
            if self.found is None and self.checkpoint.due_ms <= self.now:
                self.scan(fails=False)
            while self.found:
                self.handle(left=False)
        assert not {i: at for i, at in self.rows.items() if at <= self.now - 1_000}


ScanWithCheckpoint.TestCase.settings = settings(max_examples=examples(2), stateful_step_count=50)
TestScanWithCheckpoint = ScanWithCheckpoint.TestCase


def test_a_pause_does_not_grow_when_the_clock_is_set_back() -> None:
    checkpoint = Checkpoint(0)
    checkpoint.begin(1_000)
    checkpoint.failed(1_000)
    assert checkpoint.due_ms == 1_000 + RETRY_MS
    checkpoint.shift(-600)
    assert checkpoint.due_ms == 400 + RETRY_MS


def test_nothing_is_read_of_an_empty_index() -> None:
    checkpoint = Checkpoint(500)
    checkpoint.nothing()
    assert checkpoint.due_ms == NEVER_MS
    checkpoint.inserted(300)
    assert (checkpoint.due_ms, checkpoint.from_ms) == (300, 300)
    assert checkpoint.begin(1_000) == Range(300, 1_000, sweep=False)
