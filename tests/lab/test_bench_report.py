"""The tables and the plot of `foqs-lab bench` are made from its JSON alone."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from foqs_lab.bench import report
from foqs_lab.bench.rounds import figure_of

SVG = "{http://www.w3.org/2000/svg}"


def document(**rounds: list[float]) -> dict[str, Any]:
    shape = {"items": 10, "batch": 100, "producers": 4, "consumers": 4}
    shapes = {"cycle": shape, "single": shape, "callers": {**shape, "producers": 8}}
    return {
        "database": "mariadb",
        "version": "10.11 <x>",
        "machine": {"cores": 2},
        "plan": {"rounds": 3, "shapes": shapes},
        "versions": {"pgmq": "1.13", "beanstalkd": ""},
        "missing": {"bullmq": "no node found"},
        "rounds": rounds,
        "cores_of_other_processes": [0.1, 0.16, 0.15],
    }


FIGURES = document(
    raw_items_per_s=[90_000.0],
    cycle_items_per_s=[20_000.0, 30_000.0, 25_000.0],
    cycle_cpu_us=[40.0],
    cycle_host_cpu_us=[30.0],
    pgmq_items_per_s=[50_000.0],
    callers_items_per_s=[800.0],
    callers_lean_items_per_s=[1_000.0],
    callers_enqueue_p50_ms=[3.14],
    beanstalkd_callers_items_per_s=[2_000.0],
    cycle_over_pgmq=[0.5, 0.6, 0.4],
    callers_over_skip_locked=[1.8],
    enqueue_over_commit_p50=[2.0],
)


def rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_a_row_has_the_median_and_the_spread() -> None:
    text = report.markdown(FIGURES)
    rates, times, ratios, loud, missing = text.split("\n\n")
    found = rows(rates)
    assert found["cycles a second"][:2] == ["batches of 100", "8 synchronous callers"]
    assert found["foqs"] == ["25,000 (20,000 to 30,000)", "800 (800 to 800)", "3.1 (3.1 to 3.1)"]
    assert found["foqs, lean client"][1] == "1,000 (1,000 to 1,000)"
    assert found["pgmq (no priorities) (1.13)"][0] == "50,000 (50,000 to 50,000)"
    assert found["beanstalkd with fsync"][:2] == ["", "2,000 (2,000 to 2,000)"]
    assert rows(times)["foqs: host"][0] == "30 (30 to 30)"
    assert rows(ratios)["`cycle_over_pgmq`"] == ["0.50", "0.40 to 0.60", ">= 1.3: missed"]
    assert rows(ratios)["`callers_over_skip_locked`"][-1] == ">= 1.7"
    assert rows(ratios)["`enqueue_over_commit_p50`"][-1] == "<= 1.8: missed"
    assert loud == "Other processes used up to 0.16 cores in a round; more than 0.15 in 1 of 3 rounds."
    assert missing == "Not measured: bullmq (no node found).\n"


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (5.55, "5.5"), (99.6, "100"), (1234.5, "1,234"), (12, "12")]
)
def test_numbers_have_few_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_the_length_of_a_bar_is_its_rate() -> None:
    root = ElementTree.fromstring(report.svg(FIGURES))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[1] == "batches of 100"
    assert texts[2:6] == ["pgmq (no priorities)", "50,000", "foqs", "25,000"]
    assert texts[6:8] == ["8 synchronous callers", "beanstalkd with fsync"]
    assert "mariadb 10.11 <x>" in (texts[-1] or "")
    bars = [float(bar.attrib["width"]) for bar in list(root.iter(f"{SVG}rect"))[1:]]
    assert bars[0] == pytest.approx(2 * bars[1], rel=0.01)
    assert bars[2:] == pytest.approx([bars[0], bars[0] / 2, bars[0] * 0.4], rel=0.01)
    assert all(0 < float(text.attrib["y"]) < float(root.attrib["height"]) for text in root.iter(f"{SVG}text"))


def test_a_plot_without_bars_is_a_picture() -> None:
    ElementTree.fromstring(report.svg(document()))


def test_the_bare_name_of_a_rival_is_its_first_figure() -> None:
    assert figure_of("pgmq", "cycle") == "pgmq"
    assert figure_of("pgmq", "single") == "pgmq_single"
    assert figure_of("beanstalkd", "single") == "beanstalkd"
    assert figure_of("beanstalkd", "callers") == "beanstalkd_callers"
