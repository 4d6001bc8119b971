"""What a consuming stream reports in Spark's progress."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest

from foqs.errors import Forbidden, Unavailable
from foqs.spark import consume_lease
from foqs.spark.consume_lease import LagWatch, Rates
from tests.spark.test_consume_driver import Begin, Service, begin, service
from tests.support.waiting import wait_until as until

__all__ = ["begin", "service"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report asks, and waits for the answer."""
    monkeypatch.setattr(consume_lease, "_ASK_EVERY_S", 0.0)
    monkeypatch.setattr(consume_lease, "_REST", 0)
    monkeypatch.setattr(consume_lease, "_WAIT_S", 60.0)


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    rates = Rates(100.0)
    assert rates.add(100.0, 0, 0) == (0.0, 0.0)
    assert rates.add(104.0, 400, 200) == (100.0, 50.0)
    assert rates.add(114.0, 400, 400) == (0.0, 20.0)
    assert rates.add(119.0, 450, 400) == (3.3, 13.3)
    assert rates.add(200.0, 450, 400) == (0.0, 0.0)


def test_the_lag_is_by_the_clock_of_the_service(service: Service, begin: Begin) -> None:
    filled = service.fill(5)
    service.now_ms += 7_000
    consumer = begin(leaseMs="3600000")
    consumer.latest(0, 2)
    found = consumer.report()
    assert {name: found[name] for name in ("seq", "ready", "delayed", "leased", "lagMs")} == {
        "seq": 1, "ready": 3, "delayed": 0, "leased": 2, "lagMs": 7_000,
    }  # fmt: skip
    assert found["leasedItems"] == 2 and found["leasedPerSecond"] > 0
    assert (found["ackedItems"], found["unackedBatches"]) == (0, 0)
    start = 1
    while (end := consumer.latest(start, 2)) > start:
        consumer.batch(start, end)
        start = end
    done = consumer.report()
    assert (done["seq"], done["ready"], done["leased"], done["lagMs"]) == (3, 0, 0, 0)
    assert (done["ackedItems"], done["staleItems"], done["againItems"]) == (len(filled), 0, 0)
    assert json.loads(json.dumps(done)) == done


def test_other_topics_do_not_count(service: Service) -> None:
    watch = LagWatch(service, ["zoo", "other"])  # type: ignore[arg-type]
    service.fill(3)
    lag = watch.lag()
    assert lag is not None and lag.ready == 2
    watch.close()


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("no right")])
def test_a_report_without_an_answer_has_no_lag(
    service: Service, begin: Begin, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service.fill(1)
    consumer = begin()
    consumer.latest(0, 1)
    service.down = error
    for _ in range(3):
        found = consumer.report()
        assert (found["ready"], found["lagMs"]) == (None, None)
        assert found["leasedItems"] == 1
    assert caplog.text.count("the progress has no lag") == 1


def test_a_slow_answer_does_not_hold_a_trigger(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_lease, "_WAIT_S", 0.01)
    answer = Event()
    info = service.server_info

    def slow() -> Any:
        answer.wait(60)
        return info()

    monkeypatch.setattr(service, "server_info", slow)
    watch = LagWatch(service, ["t"])  # type: ignore[arg-type]
    service.fill(2)
    assert watch.lag() is None
    answer.set()
    lag = until(watch.lag)
    assert lag is not None and lag.ready == 2
    monkeypatch.setattr(consume_lease, "_GOOD_S", -1.0)
    assert watch.lag() is None, "an old answer is none"
    watch.close()


def test_answers_that_take_long_are_asked_for_rarely(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_lease, "_REST", 20)
    now, asked = 1_000.0, 0
    monkeypatch.setattr(consume_lease, "monotonic", lambda: now)
    active_topics = service.active_topics

    def slow(**how: Any) -> Any:
        nonlocal now, asked
        now, asked = now + 3.0, asked + 1
        return active_topics(**how)

    monkeypatch.setattr(service, "active_topics", slow)
    watch = LagWatch(service, ["t"])  # type: ignore[arg-type]
    service.fill(2)
    for _ in range(56):
        lag = watch.lag()
        assert lag is not None and lag.ready == 2
        now += 1.0
    assert asked == 1
    now += 1.0
    assert watch.lag() is not None and asked == 2
    watch.close()
