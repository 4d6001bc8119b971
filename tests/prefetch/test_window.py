"""A window with its pages gives every ready row of a lane once, in order, whatever happens while a page is read."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.item import Item, Phase
from foqs.prefetch.lane import Window
from foqs.rows import Key
from tests.support.examples import examples
from tests.support.lanes import lone_lane

CAPACITY = 6
PAGE = 4


class WindowAndPages(RuleBasedStateMachine):
    """`table` is what the database has ready; `known` what memory holds (in the window or leased)."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = lone_lane()
        self.window = Window(complete=True, page_rows=PAGE)
        self.table: dict[int, Key] = {}
        self.known: dict[int, Item] = {}
        self.next_id = 1
        self.read: tuple[int, list[Key]] | None = None

    def item(self, key: Key) -> Item:
        return Item(key[2], self.lane, key[0], key[1], 0, 0, 0, None)

    def enter(self, key: Key) -> None:
        """A committed insert, or an item that came back."""
        if self.window.covers(key):
            item = self.known[key[2]] = self.item(key)
            item.phase = Phase.WINDOW
            self.window.add(item.entry)
            if len(self.window) > CAPACITY:
                for gone in self.window.cut(CAPACITY):
                    del self.known[gone.id]
        else:
            self.known.pop(key[2], None)

    @precondition(lambda self: self.read is None)  # a commit and a page are batches of one thread, in order
    @rule(priority=st.integers(0, 3), at=st.integers(0, 3))
    def insert(self, priority: int, at: int) -> None:
        key = (priority, at, self.next_id)
        self.next_id += 1
        self.table[key[2]] = key
        self.enter(key)

    @precondition(lambda self: self.window.entries)
    @rule()
    def lease(self) -> None:
        """The first of the window is the first of all that are ready."""
        entry = self.window.entries.pop(0)
        ready = [key for item_id, key in self.table.items() if not self.leased(item_id)]
        assert entry[:3] == min(ready)
        entry[3].phase = Phase.LEASED

    def leased(self, item_id: int) -> bool:
        return item_id in self.known and self.known[item_id].phase is Phase.LEASED

    def pick(self, data: st.DataObject) -> int | None:
        leased = sorted(item_id for item_id in self.known if self.leased(item_id))
        return data.draw(st.sampled_from(leased)) if leased else None

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        item_id = self.pick(data)
        if item_id is not None:
            self.known[item_id].phase = Phase.IDLE
            self.enter(self.table[item_id])

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        item_id = self.pick(data)
        if item_id is not None and self.read is None:
            del self.table[item_id], self.known[item_id]

    @precondition(lambda self: self.read is None and self.window.wants_page(CAPACITY))
    @rule()
    def ask(self) -> None:
        after = self.window.end
        rows = sorted(key for key in self.table.values() if after is None or key > after)[:PAGE]
        self.window.asked_ms = 1
        self.read = (self.window.generation, rows)

    @precondition(lambda self: self.read is not None)
    @rule()
    def apply(self) -> None:
        assert self.read is not None
        (generation, rows), self.read = self.read, None
        if generation != self.window.generation:
            return
        items = [self.item(key) for key in rows if key[2] not in self.known]
        for item in items:
            item.phase = Phase.WINDOW
            self.known[item.id] = item
        self.window.extend([item.entry for item in items], rows[-1] if rows else None, more=len(rows) == PAGE)

    @invariant()
    def the_window_holds_all_up_to_its_end(self) -> None:
        ready = sorted(key for item_id, key in self.table.items() if not self.leased(item_id))
        if self.read is not None:
            return  # items that came back behind the page's bound since then are in the page
        covered = [key for key in ready if self.window.covers(key)]
        assert [entry[:3] for entry in self.window.entries] == covered


WindowAndPages.TestCase.settings = settings(max_examples=examples(1.5), stateful_step_count=60)
TestWindowAndPages = WindowAndPages.TestCase
