"""The outcome of a run of the demo, and its faults. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foqs_lab.demo.files import Measure
from foqs_lab.demo.tally import Tally, differences


@dataclass(frozen=True, slots=True)
class Killed:
    """The worker that was killed, and how many leases of items it was working on it took with it."""

    worker: int
    held: int


@dataclass(frozen=True, slots=True)
class Queued:
    """Results of the queue, in `seconds` from the first enqueue until the topic of files was empty.

    Workers nacked `told_to_fail` files at their first delivery; `result_waits_ms` are the times from the
    enqueue of each result to its delivery; `left` has the number of items in each topic at the end.
    """

    tally: Tally
    seconds: float
    told_to_fail: int
    killed: Killed | None
    result_waits_ms: list[float]
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both ways over the same files. `plain_seconds` is what the loop took in one process."""

    library: str
    workers: int
    queued: Queued
    plain: Mapping[str, Measure]
    plain_seconds: float

    def problems(self) -> list[str]:
        """Return a line for each fault; none if the run was good."""
        queued = self.queued
        lines = differences(queued.tally.measures(), self.plain)
        lines += [f"{_items(count)} left in topic {topic}" for topic, count in queued.left.items() if count]
        if queued.tally.nacked != queued.told_to_fail:
            lines.append(f"{queued.told_to_fail} files were nacked on purpose, {queued.tally.nacked} delivered again")
        if queued.killed is None:
            lines.append("no worker was killed at work: none held a lease")
        elif queued.tally.redeliveries < queued.told_to_fail + 1:
            lines.append("the items of the killed worker were not delivered again")
        return lines


def _items(count: int) -> str:
    return "1 item is" if count == 1 else f"{count:,} items are"
