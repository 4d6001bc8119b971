"""Which time a host's databases and its last run agree on."""

from __future__ import annotations

import pytest

from foqs.ids import Stamp
from foqs.shardmgr.clock_evidence import PATIENCE_MS, SHORT_PATIENCE_MS, Evidence, judge, middle

BOUND_MS = 60_000
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def by(**seen: object) -> int | None:
    return judge(Evidence(NOW_MS, **seen), BOUND_MS).by_ms  # type: ignore[arg-type]


def stamp(ago_ms: int, machine_ahead_ms: int = 0, host: str = "h") -> Stamp:
    """Return the stamp of a run that ended that long ago by the databases' clock."""
    return Stamp(NOW_MS - ago_ms, NOW_MS - ago_ms + machine_ahead_ms, host)


@pytest.mark.parametrize(
    ("leads", "machine_lead", "expected"),
    [
        ([5], HOUR_MS, 5),
        ([5, HOUR_MS], 2 * HOUR_MS, 5),  # the earlier of two
        ([5, HOUR_MS], HOUR_MS, HOUR_MS),  # the machine's clock decides
        ([-HOUR_MS, 5], 0, 5),
        ([5, 400], HOUR_MS, 5),
        ([HOUR_MS, 5, 9], HOUR_MS, 9),
        ([-HOUR_MS, 5, 9, HOUR_MS], 0, 5),
    ],
)
def test_the_middle(leads: list[int], machine_lead: int, expected: int) -> None:
    assert middle(leads, BOUND_MS, machine_lead) == expected


@pytest.mark.parametrize("machine_lead", [0, HOUR_MS, -2 * HOUR_MS])
def test_a_majority_of_three_is_enough_whatever_the_machine_says(machine_lead: int) -> None:
    assert by(leads=[HOUR_MS, 5, 9], machine_lead=machine_lead) == 9
    assert by(leads=[5, 9], silent=1, machine_lead=machine_lead) == 5


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_one_of_three_alone_is_not(wrong_ms: int) -> None:
    """The wrong one answers first. The other two have time, and then this machine's clock speaks against it."""
    assert by(leads=[wrong_ms], silent=2) is None
    assert by(leads=[wrong_ms], silent=2, waited_ms=PATIENCE_MS) is None
    verdict = judge(Evidence(NOW_MS, [wrong_ms], 2, asked=True), BOUND_MS)
    assert (verdict.by_ms, verdict.doubt) == (None, True)
    assert "1 of 3 databases answers" in verdict.why
    assert by(leads=[wrong_ms, 3], silent=1, asked=True, machine_lead=2 * HOUR_MS) is None


def test_databases_that_are_away_where_the_machine_agrees() -> None:
    assert by(leads=[5], silent=2) is None
    assert by(leads=[5], silent=2, waited_ms=SHORT_PATIENCE_MS) == 5
    assert by(leads=[5], silent=2, asked=True) == 5
    assert by(leads=[5, 9], silent=3, asked=True, machine_lead=HOUR_MS) == 5


def test_a_machine_that_was_as_wrong_in_the_last_run() -> None:
    seen = {"leads": [5], "silent": 1, "asked": True, "machine_lead": HOUR_MS, "host": "h"}
    assert by(**seen, stamps=[stamp(1_000, HOUR_MS)]) == 5
    assert by(**seen, stamps=[stamp(1_000, 0)]) is None
    assert by(**seen, stamps=[stamp(1_000, HOUR_MS, "another")]) is None


@pytest.mark.parametrize("lead", [0, 2 * HOUR_MS, -2 * HOUR_MS])
def test_a_single_database_is_followed_at_the_first_start(lead: int) -> None:
    """Nothing says that it is wrong."""
    assert by(leads=[lead]) == lead
    assert by(leads=[lead, lead + HOUR_MS], machine_lead=HOUR_MS * 9) == lead


def test_a_single_database_that_went_back_behind_the_last_run() -> None:
    seen = {"leads": [0], "machine_lead": 9 * HOUR_MS, "host": "h"}
    assert by(**seen, stamps=[stamp(-HOUR_MS)]) is None
    assert by(**seen, stamps=[stamp(-BOUND_MS)]) == 0
    assert by(leads=[0], stamps=[stamp(-HOUR_MS)]) == 0, "this machine's clock agrees"
    assert by(leads=[0], stamps=[stamp(-HOUR_MS)], apart=False) is None, "a file has this machine's clock"
    assert by(leads=[0, 9], stamps=[stamp(-HOUR_MS)]) == 0, "two databases agree"


def test_a_single_database_that_went_ahead_since_the_last_run() -> None:
    """This machine's clock has advanced by a minute, that of the database by an hour and a minute."""
    jumped = {"leads": [HOUR_MS], "machine_lead": 0, "host": "h"}
    verdict = judge(Evidence(NOW_MS, [HOUR_MS], stamps=[stamp(60_000)], host="h"), BOUND_MS)
    assert verdict.by_ms is None
    assert "advanced by 3600.0 s more" in verdict.why
    assert by(**jumped, stamps=[stamp(60_000, host="another")]) == HOUR_MS, "another machine's clock says nothing"
    assert by(**jumped, stamps=[stamp(60_000, -HOUR_MS)]) == HOUR_MS, "it was as far ahead then"
    assert by(leads=[0], host="h", stamps=[stamp(30 * 24 * HOUR_MS)]) == 0, "the host was away for a month"
    assert by(leads=[HOUR_MS], machine_lead=HOUR_MS, host="h", stamps=[stamp(60_000)]) == HOUR_MS
