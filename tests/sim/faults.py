"""Failures of one shard's database, and how long a trip to it takes: decided by the run's own random."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

from foqs.rows import Batch
from foqs.store.protocol import StoreBusy, StoreDown

_GROWS = (
    "inserts", "lanes_new", "dedup_new", "ready_new", "timer_new", "expiry_new", "failure_new", "ended_new",
    "results_new", "progress_new", "moved", "bodies_new", "metadata_new",
)  # fmt: skip


@dataclass(frozen=True)
class FaultRates:
    """Probabilities: per connection made, read, commit, trip; `slow_ms` and `hang_ms` are the longest."""

    connect_fails: float = 0.0
    read_down: float = 0.0
    read_busy: float = 0.0
    commit_down: float = 0.0
    commit_busy: float = 0.0
    commit_full: float = 0.0
    commit_lost: float = 0.0  # the outcome, applied or not
    slow: float = 0.0
    hang: float = 0.0
    slow_ms: int = 400
    hang_ms: int = 4_000


NONE = FaultRates()


def random_rates(rng: random.Random) -> FaultRates:
    """Some runs have no failures, some have one kind often, some have all now and then."""
    kind = rng.choice(["none", "one", "all", "all", "bad"])
    if kind == "none":
        return NONE
    names = [field.name for field in fields(FaultRates) if field.default == 0.0]
    if kind == "one":
        name = rng.choice(names)
        return replace(NONE, **{name: rng.uniform(0.02, 0.3)})
    most = 0.03 if kind == "all" else 0.15
    rates = {name: rng.uniform(0, most) for name in names}
    rates["connect_fails"] = rng.uniform(0, 0.6)
    rates["hang"] /= 5
    return replace(NONE, **rates)


class Faults:
    """The next failure, drawn before every use of a connection. This one: nothing."""

    def connecting(self) -> None:
        """May raise StoreDown."""

    def killing(self) -> bool:
        """Whether a take-over cuts the old owner's connection before it goes on (KILL only asks for it)."""
        return True

    def reading(self) -> None:
        """May raise StoreDown or StoreBusy."""

    def committing(self) -> str:
        """ "" for a good commit; "down", "busy", "full"; "applied" or "not applied" when its outcome is lost.

        "late": the session hangs before it begins, and goes on at some later time.
        """
        return ""

    def waking(self) -> bool:
        """Whether a session that hung goes on now."""
        return True

    def lacks_room(self, batch: Batch) -> bool:
        """Return True if the database is too full for `batch`."""
        return False

    def lacks_room_for_tail(self) -> bool:
        """Return True if the database is too full for the rows of the unindexed items."""
        return False


class RandomFaults(Faults):
    def __init__(self, rng: random.Random, rates: FaultRates) -> None:
        self._rng = rng
        self.rates = rates
        self.next_commit = ""  # a fault for certain
        self.room_for = "items"  # all; "rows": of items that are there; "none": removals alone
        self.made = 0
        self.fitted = 0  # transactions of a full database
        self.tails = 0  # that found no room

    def connecting(self) -> None:
        if self._rng.random() < self.rates.connect_fails:
            self.made += 1
            raise StoreDown("cannot connect")

    def killing(self) -> bool:
        return self._rng.random() < 0.5

    def reading(self) -> None:
        at = self._rng.random()
        self.made += at < self.rates.read_down + self.rates.read_busy
        if at < self.rates.read_down:
            raise StoreDown("the connection was lost while reading")
        if at < self.rates.read_down + self.rates.read_busy:
            raise StoreBusy("lock wait")

    def committing(self) -> str:
        fault = self._committing()
        self.made += bool(fault)
        return fault

    def _committing(self) -> str:
        if self.next_commit:
            fault, self.next_commit = self.next_commit, ""
            return fault
        at, rates = self._rng.random(), self.rates
        for rate, fault in (
            (rates.commit_down, "down"),
            (rates.commit_busy, "busy"),
            (rates.commit_full, "full"),
            (rates.commit_lost / 2, "applied"),
            (rates.commit_lost / 4, "not applied"),
            (rates.commit_lost / 4, "late"),
        ):
            if at < rate:
                return fault
            at -= rate
        return ""

    def waking(self) -> bool:
        return self._rng.random() < 0.3

    def lacks_room(self, batch: Batch) -> bool:
        if self.room_for == "items":
            return False
        grows = ("inserts", "dedup_new") if self.room_for == "rows" else _GROWS
        lacks = any(getattr(batch, name) for name in grows)
        self.made += lacks
        self.fitted += not lacks
        return lacks

    def lacks_room_for_tail(self) -> bool:
        lacks = self.room_for == "none" or (self.room_for == "rows" and self._rng.random() < 0.5)
        self.tails += lacks
        return lacks

    def trip_ms(self) -> int:
        """How long the next trip takes."""
        at = self._rng.random()
        if at < self.rates.hang:
            return self._rng.randint(1_000, self.rates.hang_ms)
        if at < self.rates.hang + self.rates.slow:
            return self._rng.randint(20, self.rates.slow_ms)
        return self._rng.randint(0, 6)
