"""Entries from lines: one that repeats another one shares its outcome, in bounded memory."""

from collections.abc import Sequence

import pytest

from foqs.cli import connection
from foqs.cli.connection import BATCH_ITEMS, Count, Ended, settle
from foqs.errors import FoqsError, Invalid, NotFound

GONE, WRONG = NotFound("gone"), Invalid("line 2: wrong")


def test_outcomes_come_in_the_order_of_the_lines() -> None:
    sent: list[list[str]] = []

    def send(entries: list[str]) -> Sequence[FoqsError | None]:
        sent.append(entries)
        return [GONE if entry == "b" else None for entry in entries]

    entries: list[tuple[int, str | Invalid]] = [(1, "a"), (2, WRONG), (3, "b"), (4, "a"), (5, "b")]
    ended = list(settle(entries, send))
    assert [one.error for one in ended] == [None, WRONG, GONE, None, GONE]
    assert [one.message for one in ended if one.error] == ["line 2: wrong", "line 3: gone", "line 5: gone"]
    assert Ended(0, "b", GONE).message == "gone"
    assert sent == [["a", "b"]]


def test_outcomes_are_known_for_so_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_KNOWN", 2)
    sent: list[int] = []

    def send(entries: list[int]) -> Sequence[FoqsError | None]:
        sent.extend(entries)
        return [None] * len(entries)

    entries = [*range(BATCH_ITEMS), BATCH_ITEMS - 1, BATCH_ITEMS - 3]
    assert len(list(settle([(0, entry) for entry in entries], send))) == len(entries)
    assert sent == [*range(BATCH_ITEMS), BATCH_ITEMS - 3]


def test_a_count_without_a_failure_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    count = Count()
    count.add(Ended(1, "a", None))
    count.report("acked")
    count.add(Ended(2, None, WRONG))
    with pytest.raises(SystemExit) as ended:
        count.report("acked")
    assert (ended.value.code, capsys.readouterr().err) == (1, "foqs: 1 of 2 items was not acked\n")
