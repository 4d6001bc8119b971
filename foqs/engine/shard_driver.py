"""Open, retry, release, lose and stop a host's shards: results and facts come in, steps go out.

The driver has no clock, thread or connection. A shell carries out its steps in order and reports their results:
`foqs.server.shard_runner`, and both simulations.

| state              | event               | next     | steps                                                   |
| ------------------ | ------------------- | -------- | ------------------------------------------------------- |
| ASSIGNED           | take                | OPENING  | Prepare                                                 |
| ASSIGNED           | retry               | OPENING  | Prepare on a static host, else Forget                   |
| ASSIGNED           | release             | -        | Forget                                                  |
| OPENING            | unusable            | ASSIGNED | none: another URL may come                              |
| OPENING            | prepared            | OPENING  | Open                                                    |
| OPENING            | not opened          | ASSIGNED | NotOpened, Discard, Retry                               |
| OPENING            | opened              | SERVING  | Serve                                                   |
| OPENING            | release             | OPENING  | none: unwanted                                          |
| OPENING, unwanted  | prepared, unusable  | CLOSED   | Forget                                                  |
| OPENING, unwanted  | opened, not opened  | CLOSED   | Close, then Forget                                      |
| SERVING            | release             | DRAINING | Retire, Drain                                           |
| DRAINING           | drained             | CLOSED   | Drain until idle or late, then End, Close, then Forget  |
| SERVING, DRAINING  | lost                | CLOSED   | Discard, Retry                                          |
| CLOSED, lost       | retry               | OPENING  | Prepare on a static host, else Forget                   |
| SERVING, DRAINING  | ended               | CLOSED   | End, Close                                              |
| OPENING            | ended               | OPENING  | Close                                                   |
| OPENING, stopping  | opened, not opened  | CLOSED   | Close                                                   |
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from foqs.ids import Marks
from foqs.opened import Opened
from foqs.shardmgr.lifecycle import ShardState

HELD_RETRY_MS = 200
RETRY_MS = 1_000
LOST_RETRY_MS = 1_000
"""Pause before a lost shard is opened again. Without it, two hosts would take the shard from each other in turn."""
DRAIN_CHECK_MS = 10


class DrivenOwner(Protocol):
    """`foqs.engine.shard_owner.ShardOwner`, or the cluster simulation's shard."""

    state: ShardState

    def to(self, state: ShardState) -> None: ...


class DrivenShard(Protocol):
    @property
    def owner(self) -> DrivenOwner: ...


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make a closed store and read the shard's marks; report `prepared` or `unusable`."""

    number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open the prepared store; report `opened` or `not_opened`. The new epoch must be above `epoch_above`."""

    number: int
    attempt: int
    take_over: bool
    epoch_above: int
    marks: Marks | None


@dataclass(frozen=True, slots=True)
class Serve:
    """Move the shard to SERVING."""

    number: int
    opened: Opened


@dataclass(frozen=True, slots=True)
class NotOpened:
    """Count and log the failure. `held`: another host has the shard."""

    number: int
    reason: str
    held: bool


@dataclass(frozen=True, slots=True)
class Retire:
    """Move the shard to DRAINING: it takes no new work and commits its queued work."""

    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Report `drained` after `after_ms`."""

    number: int
    attempt: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """Move the shard to CLOSED and refuse what still waits. `in_order`: save its mark first, if it is idle."""

    number: int
    in_order: bool


@dataclass(frozen=True, slots=True)
class Close:
    """Close the store after its queued work, then report `closed`. `clean`: the next owner needs no grace period."""

    number: int
    attempt: int
    clean: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """Close the store, not clean. The driver expects no report."""

    number: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Report `retry` after `after_ms`."""

    number: int
    attempt: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the shard from the host."""

    number: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A shard came, went or changed its state: the membership agent decides again."""


Step = Prepare | Open | Serve | NotOpened | Retire | Drain | End | Close | Discard | Retry | Forget | Changed
Steps = list[Step]


@dataclass(slots=True)
class _Life:
    """`attempt` is that of the steps whose reports count; a report with another one is stale."""

    attempt: int
    epoch_above: int = 0
    unwanted: bool = False
    closing: bool = False
    deadline_ms: int = 0


class ShardDriver:
    """`shards` are the host's: the shell adds one before `take` and removes one on `Forget`.

    `static`: the host's assignment never changes, so it keeps every shard and opens it again after a failure or a loss.
    Any other host forgets such a shard, and opens it again only if the assignment still names the host.
    `take_over`: take shards from living owners. A static host stops doing so after it has lost a shard to one.
    """

    def __init__(self, shards: Mapping[int, DrivenShard], *, static: bool, take_over: bool) -> None:
        self._shards = shards
        self._static = static
        self._take_over = take_over
        self._lives: dict[int, _Life] = {}
        self._attempts = 0
        self.stopping = False
        self.tried: set[int] = set()
        """Shards with at least one finished attempt to open them."""
        self.unreachable: set[int] = set()
        """Shards whose database did not answer the last attempt to open them, or takes no writes."""
        self.read_only: set[int] = set()
        """Shards whose database took no writes at the last attempt to open them."""

    def keep_unreachable(self, assigned: Container[int]) -> None:
        """Drop shards that are not `assigned` to this host from `unreachable`."""
        self.unreachable = {number for number in self.unreachable if number in assigned}
        self.read_only &= self.unreachable

    # ------------------------------------------------------------------------------------- open

    def take(self, number: int, epoch_above: int = 0) -> Steps:
        """Open an ASSIGNED shard, with an epoch above `epoch_above`."""
        if self.stopping:
            return []
        return [self._prepare(number, epoch_above), Changed()]

    def _prepare(self, number: int, epoch_above: int) -> Prepare:
        self._attempts += 1
        self._lives[number] = _Life(self._attempts, epoch_above)
        self._shards[number].owner.to(ShardState.OPENING)
        return Prepare(number, self._attempts)

    def unusable(self, number: int, attempt: int) -> Steps:
        """No store can be made of the shard's URL. Nothing is retried: a new URL comes with a release and a take."""
        life = self._life(number, attempt)
        if life is None:
            return []
        if life.unwanted:
            return self._forget_unopened(number)
        self._shards[number].owner.to(ShardState.ASSIGNED)
        return []

    def prepared(self, number: int, attempt: int, marks: Marks | None) -> Steps:
        """The store is made. `marks` belong to the shard's number; None if the host keeps none."""
        life = self._life(number, attempt)
        if life is None or self.stopping:
            return []
        if life.unwanted:
            return self._forget_unopened(number)
        return [Open(number, attempt, self._take_over, life.epoch_above, marks)]

    def wants(self, number: int, attempt: int) -> bool:
        """Return True if the shard is served once it is opened, False if it is closed then."""
        life = self._life(number, attempt)
        return life is not None and not (life.unwanted or self.stopping)

    def opened(self, number: int, attempt: int, opened: Opened) -> Steps:
        """The store took ownership."""
        life = self._life(number, attempt)
        if life is None:
            return []
        self.tried.add(number)
        self._database(number)
        if life.unwanted or self.stopping:
            # The replaced owner may live: the next owner needs the grace period as well.
            return self._close_unserved(number, life, clean=not opened.replaced)
        return [Serve(number, opened), Changed()]

    def not_opened(
        self, number: int, attempt: int, reason: str, *, held: bool, down: bool, read_only: bool = False
    ) -> Steps:
        """The store was not opened: another host holds the shard, the database is `down`, or it refused.

        `read_only`: it is down because it takes no writes."""
        life = self._life(number, attempt)
        if life is None:
            return []
        self.tried.add(number)
        self._database(number, down=down, read_only=read_only)
        if life.unwanted or self.stopping:
            return self._close_unserved(number, life, clean=False)
        self._shards[number].owner.to(ShardState.ASSIGNED)
        again = Retry(number, attempt, HELD_RETRY_MS if held else RETRY_MS)
        return [NotOpened(number, reason, held), Discard(number), again, Changed()]

    def _database(self, number: int, *, down: bool = False, read_only: bool = False) -> None:
        for numbers, wanted in ((self.unreachable, down), (self.read_only, read_only)):
            if wanted:
                numbers.add(number)
            else:
                numbers.discard(number)

    def retry(self, number: int, attempt: int) -> Steps:
        """The pause after a failure or a loss has passed."""
        life = self._life(number, attempt)
        if life is None or self.stopping:
            return []
        if not self._static:
            return self._forget(number)
        shard = self._shards[number]
        if shard.owner.state is ShardState.CLOSED:
            shard.owner.to(ShardState.ASSIGNED)
        return [self._prepare(number, life.epoch_above)]

    # ------------------------------------------------------------------------------------- give up

    def release(self, number: int, now_ms: int, handover_ms: int) -> Steps:
        """Give the shard up: finish its work within `handover_ms`, then close it. `now_ms` is monotonic."""
        shard, life = self._shards.get(number), self._lives.get(number)
        if shard is None:
            return []
        if shard.owner.state is ShardState.ASSIGNED:
            return self._forget(number)
        assert life is not None
        if shard.owner.state is ShardState.OPENING:
            life.unwanted = True
        elif shard.owner.state is ShardState.SERVING:
            life.deadline_ms = now_ms + handover_ms
            return [Retire(number), Changed(), Drain(number, life.attempt, 0)]
        return []

    def drained(self, number: int, attempt: int, now_ms: int, *, idle: bool, in_grace: bool) -> Steps:
        """A released shard was looked at: `idle`: all its work is finished; `in_grace`: a replaced owner may live."""
        life = self._life(number, attempt)
        if life is None or self.stopping or self._shards[number].owner.state is not ShardState.DRAINING:
            return []  # lost, or `ended` closes it
        if not idle and now_ms < life.deadline_ms:
            return [Drain(number, attempt, DRAIN_CHECK_MS)]
        life.closing = True
        in_order = idle and not in_grace
        return [End(number, in_order), Close(number, attempt, in_order)]

    def lost(self, number: int) -> Steps:
        """The shard, CLOSED by now, has another owner."""
        life = self._lives.get(number)
        if life is None or life.closing or self.stopping:
            return []
        life.closing = True
        if self._static:
            self._take_over = False
        pause_ms = HELD_RETRY_MS if self._static else LOST_RETRY_MS
        return [Discard(number), Retry(number, life.attempt, pause_ms), Changed()]

    def closed(self, number: int, attempt: int) -> Steps:
        """The store is closed, as `Close` asked."""
        if self.stopping or self._life(number, attempt) is None:
            return []
        return self._forget(number)

    # ------------------------------------------------------------------------------------- stop

    def stop(self) -> None:
        """Open, retry and hand over nothing from now on."""
        self.stopping = True

    def ended(self, in_grace: Container[int]) -> Steps:
        """The grace of a stopping host has passed, or all work finished. Close every store that is or may be open."""
        steps: Steps = []
        for number, life in self._lives.items():
            state = self._shards[number].owner.state
            if state in (ShardState.SERVING, ShardState.DRAINING) and not life.closing:
                in_order = number not in in_grace
                steps += [End(number, in_order), Close(number, life.attempt, in_order)]
            elif state is ShardState.OPENING:
                steps.append(Close(number, life.attempt, clean=False))
        return steps

    def _close_unserved(self, number: int, life: _Life, *, clean: bool) -> Steps:
        life.closing = True
        self._shards[number].owner.to(ShardState.CLOSED)
        return [Close(number, life.attempt, clean)]

    def _forget_unopened(self, number: int) -> Steps:
        self._shards[number].owner.to(ShardState.CLOSED)
        return self._forget(number)

    def _forget(self, number: int) -> Steps:
        self._lives.pop(number, None)
        return [Forget(number), Changed()]

    def _life(self, number: int, attempt: int) -> _Life | None:
        life = self._lives.get(number)
        return life if life is not None and life.attempt == attempt else None
