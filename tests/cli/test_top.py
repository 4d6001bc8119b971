"""`foqs top`: its frames, and the view in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group

from foqs.cli.throttle import Row
from foqs.cli.top import Frame, _busiest, bars, draw
from foqs.client import ActiveTopic, Client, Consumers, ConsumerStats, NamespaceRates, Rates, ThrottleStats
from foqs.doctor.verdict import Reason, Verdict, Word
from foqs.policies.entries import parse_throttle
from tests.support.live import Run, client, host, in_terminal, run

__all__ = ["client", "host", "run"]

COUNTS = tuple([0] * 354 + [10] * 6)
RATES = Rates(10_000, 0, 0, (NamespaceRates("shop", COUNTS, COUNTS, COUNTS, (0,) * 360),), False, ("h2:7707",))
REASONS = tuple(Reason(Word.DEGRADED, "slow", f"reason {n} " + "x" * 200, f"remedy {n}") for n in range(9))
LIMIT = parse_throttle('{"per_second": 2}').throttle("throttle.smtp")
FRAME = Frame(
    1_767_225_600_000,
    Verdict(Word.DEGRADED, REASONS),
    RATES,
    [ActiveTopic("shop", f"t-{n}", 1_000 - n, 1, (), 0, 0) for n in range(300)],
    True,
    [Row(f"k-{n}", LIMIT, ThrottleStats(f"k-{n}", parked_items=n)) for n in range(90)],
    Consumers(tuple(ConsumerStats("shop", f"w-{n}") for n in range(90)), False, ()),
)


def shown(frame: Frame, height: int | None, said: str = "") -> list[str]:
    text = io.StringIO()
    Console(file=text, width=100, markup=False).print(Group(*draw(frame, "shop", height, said)), crop=False)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("height", [24, 40, 60, 120])
def test_a_frame_fits_into_the_terminal(height: int) -> None:
    lines = shown(FRAME, height)
    assert len(lines) <= height
    assert [line for line in lines if line.startswith(("topics: ", "throttles: ", "consumers: "))]
    assert len(lines) >= height - 6, "room is left"


def test_a_frame_has_the_verdict_rates_and_tables() -> None:
    lines = shown(FRAME, None, "no answer since then")
    assert lines[0] == "DEGRADED  namespace shop  2026-01-01 00:00:00Z  without h2:7707, which did not answer"
    assert lines[1] == "! no answer since then"
    assert sum(line.startswith("- reason") for line in lines) == len(REASONS)
    assert next(line for line in lines if line.startswith("enqueued")).split()[:2] == ["enqueued", "1.0/s"]
    assert "topics: 50 of 300+" in lines
    assert "throttles: 50 of 90" in lines


def test_topics_have_rates_and_the_busiest_come_first() -> None:
    lines = shown(FRAME, None)
    head = next(at for at, line in enumerate(lines) if line.startswith("topic "))
    assert lines[head].split()[-4:] == ["in/s", "delivered/s", "acked/s", "failed/min"]
    quiet = ActiveTopic("shop", "quiet", 0, 0, (), 0, 0, 0, 0, 0, 0, False, False)
    drained = quiet._replace(topic="fast", delivered_minute=600)
    assert sorted([quiet, drained, quiet._replace(topic="full", ready=1)], key=_busiest)[0].topic == "full"
    assert min([quiet, drained], key=_busiest) == drained


def test_a_caller_without_the_right_gets_the_rest() -> None:
    lines = shown(FRAME._replace(verdict=None, consumers=None), 40)
    assert lines[0].startswith("namespace shop")
    assert not [line for line in lines if line.startswith("consumers")]


def test_a_namespace_without_items_is_said() -> None:
    lines = shown(FRAME._replace(topics=[], throttles=[], consumers=None, more_topics=False), 24)
    assert "namespace shop has no items, and nothing asks for some" in lines


@pytest.mark.parametrize("counts", [[0], [1, 0, 0, 5], [7] * 360, [0] * 359 + [1]])
def test_a_line_of_bars_shows_each_count(counts: list[int]) -> None:
    line = bars(counts)
    assert len(line) <= 45
    assert bool(line.strip()) == any(counts)


@pytest.mark.process
def test_a_pipe_gets_the_view_once(client: Client, run: Run) -> None:
    client.put_settings({"throttle.smtp": '{"per_second": 2}'})
    for _ in range(3):
        client.enqueue("mail", b"x", throttle_keys=["smtp"])
    lines = run("top").stdout.splitlines()
    assert "topics: 1" in lines
    assert next(line for line in lines if line.startswith("mail")).split()[1:3] == ["3", "0"]
    assert next(line for line in lines if line.startswith("smtp")).split()[1] == "2"


@pytest.mark.process
def test_a_key_ends_the_view(client: Client) -> None:
    client.enqueue("mail", b"x")
    status, text = in_terminal(client, "top", "--every", "3600", typed="xq", term="xterm")
    assert status == 0
    assert "topics: 1" in text
    assert "topics: 1" in in_terminal(client, "top")[1], "a terminal without a cursor gets it once"
