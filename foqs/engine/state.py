"""The data of one host that the modules of this package read and change, and its work in slices of the event loop.

`Engine` holds a `State` and has the verbs. The modules take a `State`, so that none of them needs the engine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from foqs.bounds import Budget
from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.held_keys import FreedKeys, TellKeys
from foqs.buffers.item_batches import BatchLinks
from foqs.config.load import Config
from foqs.counters import Counters, Namespaces
from foqs.engine.calls import Deadlines, DequeueCall, Timed
from foqs.engine.endings import NO_ITEM, Awaited
from foqs.engine.shard import Shard
from foqs.engine.throttling import Throttling
from foqs.engine.workers import Askers, Holdings, Hung
from foqs.errors import FoqsError, NotFound, NotServed
from foqs.fairness.keys import TopicKey
from foqs.fairness.ledger import Recent
from foqs.fairness.topics import Topics
from foqs.hooks.protocol import AskScript
from foqs.item import Item
from foqs.policies.layers import Policies
from foqs.prefetch.lane import Lane
from foqs.prefetch.residents import Residents
from foqs.shardmgr.lifecycle import ShardState


def _nothing(*_: object) -> None:
    """The callback of an engine that is not connected."""


_ALONE = BatchLinks(_nothing, _nothing, frozenset)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """How an engine reports to the process around it.

    `wake`: call `pump` soon. `alarm`: call `tick` by that time. `served`: the shards served here, or their slots,
    changed. `became_ready`: a topic has ready items that waiting consumers did not take. `ready_again`: a worker of
    another host that was refused items of a topic may have some (`per_worker`). `left_waiting`: a consumer
    waits for a topic that has nothing ready here. `slots_written`: a transaction that gave a shard slots has ended.
    `hangs`: a shard's batch has had no reply for `hang_ms`; called again until it has ended.
    `tell_keys`: ask the shards of keys to take or to free them. `batches`: the messages about batches of items.
    `tokens_wanted`: throttle keys need tokens. `ask_script`: ask a topic's script about a failed attempt; None: no
    script runs. `monotonic_ms` is the clock of tokens: it never goes back.
    """

    wake: Callable[[], None] = _nothing
    alarm: Callable[[int], None] = _nothing
    served: Callable[[], None] = _nothing
    became_ready: Callable[[TopicKey], None] | None = None
    ready_again: Callable[[TopicKey], None] = _nothing
    left_waiting: Callable[[TopicKey], None] = _nothing
    slots_written: Callable[[], None] = _nothing
    hangs: Callable[[Shard], None] = _nothing
    tell_keys: TellKeys = _nothing
    batches: BatchLinks = _ALONE
    tokens_wanted: Callable[[], None] = _nothing
    ask_script: AskScript | None = None
    monotonic_ms: Callable[[], int] = lambda: 0


UNCONNECTED = Callbacks()


class LoopSlices:
    """Work that is cut into slices of the event loop. `wake` asks for the next slice."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.long_work: deque[Iterator[None]] = deque()  # on very many topics: see `begin`
        self.next_slice: list[Callable[[], None]] = []  # what `soon` puts off
        self._wake = wake

    def soon(self, do: Callable[[], None]) -> None:
        """Call `do` in the next slice: a reply may come while a batch is applied."""
        self.next_slice.append(do)
        self._wake()

    def begin(self, work: Iterator[None]) -> None:
        """Do the first part of `work` now, and one more in each of the next slices. The parts end where it yields."""
        for _ in work:
            self.put_off(work)
            return

    def put_off(self, work: Iterator[None]) -> None:
        """Do the parts of `work` in the next slices."""
        self.long_work.append(work)
        self._wake()

    def go_on(self) -> None:
        """Do the next part of the work that has waited longest."""
        self.begin(self.long_work.popleft())
        if self.long_work:  # of other work, where this one has ended
            self._wake()

    def take_next(self) -> list[Callable[[], None]]:
        """Take out what `soon` put off."""
        next_slice, self.next_slice = self.next_slice, []
        return next_slice


class State:
    def __init__(
        self,
        config: Config,
        budget: Budget,
        rng: random.Random,
        callbacks: Callbacks = UNCONNECTED,
        *,
        shards_elsewhere: bool = False,
    ) -> None:
        """`shards_elsewhere`: a shard that is not here may exist on another host."""
        self.config = config
        self.budget = budget
        self.rng = rng
        self.callbacks = callbacks
        self.wake = callbacks.wake
        self.alarm = callbacks.alarm
        self.timer_ms = NEVER_MS  # time of the next tick, if known: only an earlier alarm is set
        self.shards_elsewhere = shards_elsewhere
        self.now_ms = 0  # of the call being carried out; set on every way in that can run callbacks
        self.counters = Counters(Namespaces(config.admin.namespaces))
        self.shards: dict[int, Shard] = {}
        self.topics: Topics[Lane[Item]] = Topics()
        self.policies = Policies()
        self.explained = Recent()
        self.serving: list[Shard] = []
        self.dirty: dict[Shard, None] = {}  # shards that may have something to send
        # First come, first served. (Lists: most are short, and a deque takes 760 bytes.)
        self.waiting: dict[TopicKey, list[DequeueCall]] = {}
        self.due: dict[TopicKey, None] = {}  # topics whose consumers are served in the next slice of the event loop
        self.held_up: dict[TopicKey, int] = {}  # topics whose merge waits for a shard, and until when
        self.skipping: dict[TopicKey, None] = {}  # topics that are merged without it
        self.staying: dict[DequeueCall, int] = {}  # calls kept past their wait, for a shard -> when their wait ended
        self.residents = Residents(budget, self.waiting, lambda: self.now_ms)
        self.deadlines: Deadlines[Timed] = Deadlines()
        self.patience: Deadlines[DequeueCall] = Deadlines()
        self.slices = LoopSlices(self.wake)
        self.throttling = Throttling(
            self.policies, self.waiting, self._unparked, self.slices.put_off, rng.random,
            callbacks.tokens_wanted, callbacks.monotonic_ms, lambda: self.serving,
        )  # fmt: skip
        self._unparked_topics: dict[TopicKey, None] = {}
        self.awaited = Awaited()
        self.freed_keys = FreedKeys()
        self.holdings = Holdings(self.shards, self.policies)
        self.hung = Hung()
        self.askers = Askers()
        self.draining = False

    def touch(self, shard: Shard) -> None:
        """Note that `shard` may have something to send."""
        if not self.dirty:
            self.wake()
        self.dirty[shard] = None

    def _unparked(self, key: TopicKey) -> None:
        """Serve consumers of a topic whose flows no longer wait for tokens."""
        waited_for = key in self.waiting
        if waited_for:
            self.due[key] = None
            self.wake()
        if self.callbacks.became_ready is not None:
            if not waited_for:
                self.callbacks.became_ready(key)
            else:  # the consumers here may take all
                if not self._unparked_topics:
                    self.slices.soon(self._publish_unparked)
                self._unparked_topics[key] = None

    def _publish_unparked(self) -> None:
        keys, self._unparked_topics = self._unparked_topics, {}
        for key in keys:
            if self.callbacks.became_ready is not None:
                self.callbacks.became_ready(key)

    def settles(self, shard: Shard) -> bool:
        """Return True if changes of the shard's items are accepted here.

        A shard that is handed over accepts none, or it would never be idle under load. A host that shuts down accepts
        changes: it hands over none of its shards.
        """
        if shard.owner.state is ShardState.DRAINING:
            return self.draining
        return shard.owner.state is ShardState.SERVING

    def absent(self) -> FoqsError:
        """Return the outcome for an item whose shard is not here."""
        return NotServed() if self.shards_elsewhere else NotFound(NO_ITEM)


P = ParamSpec("P")


def in_slices(work: Callable[Concatenate[State, P], Iterator[None]]) -> Callable[Concatenate[State, P], None]:
    """Make a generator a function that runs it as `LoopSlices.begin` does.

    An owner whose loop stalls is not confirmed in time, and other requests wait for it."""

    @wraps(work)
    def begin(state: State, /, *args: P.args, **kwargs: P.kwargs) -> None:
        state.slices.begin(work(state, *args, **kwargs))

    return begin
