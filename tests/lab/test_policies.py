"""What the scenarios of fair sharing and throttles are judged by."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from foqs.client.items import Item
from foqs_lab.policies import fair, hooked, run, throttled
from foqs_lab.policies.stage import Delivered, exceeded_by


def delivered(*times_s: float) -> list[Delivered]:
    return [Delivered(at_s - 0.001, at_s, Item(1, 1, 1, "ns", "t", 0, b"")) for at_s in times_s]


def test_by_how_much_a_rate_was_exceeded() -> None:
    steady = [n / 10 for n in range(100)]
    assert exceeded_by(delivered(*steady), 10, 1) == 0
    assert exceeded_by(delivered(*[0.0] * 4, *steady), 10, 1) == pytest.approx(4, abs=0.02)
    assert exceeded_by([], 10, 1) == 0


def test_how_far_shares_are_from_their_due() -> None:
    due = ["one"] * 100 + ["two"] * 200 + ["four"] * 400
    assert fair.farthest(due) == pytest.approx(0)
    assert fair.farthest([*due, *["two"] * 100]) == pytest.approx(300 / 800 - 2 / 7)
    assert fair.farthest(["one"]) == pytest.approx(6 / 7)


def test_each_scenario_of_one_host_and_of_three() -> None:
    assert list(range(1, 21)) == run.NUMBERS
    assert {len(one.hosts) for one in run.SCENARIOS} == {1, 3}


def test_a_quantile_is_interpolated_inside_its_bucket() -> None:
    before = [(0.01, 10.0), (0.025, 10.0), (0.05, 10.0), (math.inf, 10.0)]
    after = [(0.01, 100.0), (0.025, 110.0), (0.05, 110.0), (math.inf, 110.0)]
    assert hooked.quantile(after, before, 0.9) == pytest.approx(0.01)
    assert hooked.quantile(after, before, 0.95) == pytest.approx(0.0175)
    assert hooked.quantile(before, before, 0.99) == 0
    beyond = [(0.01, 10.0), (0.025, 10.0), (0.05, 10.0), (math.inf, 20.0)]
    assert hooked.quantile(beyond, before, 0.99) == pytest.approx(0.05)


def test_how_many_leases_live_at_one_time() -> None:
    ms = 1_000_000
    lines = [f"got 1 7 {0 * ms} {5 * ms}", f"got 2 8 {0 * ms} {6 * ms}", f"acked 1 7 {9 * ms}", f"got 3 9 0 {9 * ms}"]
    leases = throttled.leases_of(lines, 100)
    assert [(one.from_ns // ms, one.to_ns // ms) for one in leases] == [(5, 9), (6, 100), (9, 100)]
    assert throttled.most_at_once(leases) == 2
    assert throttled.most_at_once([*leases, throttled.Lease(4, 1, 8 * ms, 10 * ms)]) == 3
    assert throttled.busy_share(leases, 0, 10 * ms, 2) == pytest.approx(9 / 20)


def test_the_picture_has_a_line_for_each_tenant() -> None:
    rates = {tenant: [number] * 40 for number, tenant in enumerate(("red", "green", "blue", "new"), 1)}
    drawn = run.svg(run.Run(rates, run.STEPS))
    root = ElementTree.fromstring(drawn)
    lines = [one for one in root if one.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [40] * 4
    texts = [one.text or "" for one in root if one.tag.endswith("text")]
    assert all(any(step.text in text for text in texts) for step in run.STEPS)
