"""What the process of a worker counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from foqs import Reject, Retry
from foqs.client import AsyncJob, Item
from foqs.tasks.meter import Meter, outcome_of

pytestmark = pytest.mark.memory

NOW = 100.0
PLAIN = {"gone": False, "stopped": False, "stop_at": None, "at_most_once": False}


class Played(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def job(*, released: bool = False, **held: Any) -> Any:
    item = Item(topic="t", headers={"foqs-task": "known"})
    return Played(item=item, released=released, held=SimpleNamespace(**{**PLAIN, **held}))


@pytest.mark.parametrize(
    ("job", "error", "outcome"),
    [
        (job(), None, "completed"),
        (job(), ValueError(), "failed"),
        (job(), Retry(), "retried"),
        (job(), Reject("no"), "rejected"),
        (job(released=True), ValueError(), "released"),
        (job(stopped=True), asyncio.CancelledError(), "released"),
        (job(stopped=True), Retry(), "released"),
        (job(stopped=True), None, "completed"),
        (job(stopped=True, stop_at=NOW), Retry(), "failed"),
        (job(stopped=True, stop_at=NOW), asyncio.CancelledError(), "released"),
        (job(stopped=True, at_most_once=True), asyncio.CancelledError(), "lost"),
        (job(stopped=True, at_most_once=True), Retry(), "lost"),
        (job(released=True, at_most_once=True), None, "lost"),
        (job(stop_at=NOW), None, "failed"),
        (job(stop_at=NOW), asyncio.CancelledError(), "failed"),
        (job(stop_at=NOW + 1), None, "completed"),
        (job(gone=True), None, "lost"),
    ],
)
def test_outcomes(job: Any, error: BaseException | None, outcome: str) -> None:
    assert outcome_of(job, error, NOW) == outcome


def test_a_report_has_what_changed_since_the_last_one() -> None:
    looks: list[int] = []
    meter = Meter({"known"}, lambda: looks.append(meter.ended))
    go = asyncio.Event()

    async def handle(item: Item, job: AsyncJob) -> None:
        await go.wait()
        if item.headers == {}:
            raise ValueError

    async def work() -> None:
        runs = meter.around(handle)
        known = asyncio.create_task(runs(job().item, job(stop_at=1.0)))
        unknown = asyncio.create_task(runs(Item(topic="t", headers={}), job()))
        await asyncio.sleep(0)
        assert meter.take() == {"outcomes": [], "seconds": [], "in_flight": {"t": 2}, "lag_s": 0.0}
        assert (meter.over_limit(2.0, 0.5), meter.over_limit(1.2, 0.5), meter.running) == (1, 0, 2)
        go.set()
        await asyncio.wait({known, unknown})
        with pytest.raises(ValueError):
            unknown.result()

    asyncio.run(work())
    report = meter.take()
    assert report["outcomes"] == [["known", "t", "failed", 1], ["unknown", "t", "failed", 1]]
    assert [sum(counts) for *_, counts, _ in report["seconds"]] == [1, 1]
    assert (report["in_flight"], looks, meter.ended) == ({}, [1, 2], 2)
    assert meter.take()["outcomes"] == []
