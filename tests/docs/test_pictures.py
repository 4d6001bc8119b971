"""The pictures of the docs: current, true of the table of states, readable, and each on a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foqs import item
from foqs.client import ItemState
from script import pictures
from tests.api.hosts import ROOT

DOCS = ROOT / "docs"
LEARN = DOCS / "learn"
SVG = "{http://www.w3.org/2000/svg}"
LEAST_PX, WIDEST_PX = 12, 760


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_current(name: str) -> None:
    assert (LEARN / "images" / name).read_text() == pictures.drawn(pictures.PICTURES[name]())


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_readable(name: str) -> None:
    root = ElementTree.parse(LEARN / "images" / name).getroot()
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    assert width <= WIDEST_PX
    ground = root.find(f"{SVG}rect")
    assert ground is not None, "it needs a ground of its own on a dark page"
    assert (ground.attrib["width"], ground.attrib["height"]) == (str(width), str(height))
    sizes = [float(part.attrib["font-size"]) for part in root.iter() if "font-size" in part.attrib]
    assert min(sizes) >= LEAST_PX
    for words in root.iter(f"{SVG}text"):
        assert 0 < float(words.attrib["y"]) < height


def test_the_check_finds_a_picture_that_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--check"])
    assert pictures.main() == 1
    assert not (tmp_path / "images").exists()
    monkeypatch.setattr(sys, "argv", ["pictures.py"])
    assert pictures.main() == 0
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--check"])
    assert pictures.main() == 0
    (tmp_path / "images" / "states.svg").write_text("another one")
    assert pictures.main() == 1


def test_a_new_step_of_the_table_needs_an_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(item._MOVES, item.Step.LEASE, {item.WINDOW: item.UNWRITTEN, item.DELAYED: item.UNWRITTEN})
    with pytest.raises(pictures.Untrue, match="'delayed', 'leased'"):
        pictures.life_of_an_item()


def test_an_arrow_needs_a_step_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(item._COMMITS, item.To.MOVED, {item.IDLE: item.IDLE, item.DELAYED: item.IDLE})
    with pytest.raises(pictures.Untrue, match="'leased', 'dead letter'"):
        pictures.life_of_an_item()


def test_each_picture_is_on_a_page_with_words() -> None:
    shown = [
        (name, words)
        for page in [*LEARN.glob("*.md"), *DOCS.glob("why/*.md")]
        for words, name in re.findall(r"!\[(.*?)\]\((?:\.\./learn/)?images/([\w.-]+)\)", page.read_text(), re.S)
    ]
    assert sorted(name for name, _ in shown) == sorted(pictures.PICTURES)
    assert sorted(path.name for path in (LEARN / "images").iterdir()) == sorted(pictures.PICTURES)
    assert not [name for name, words in shown if len(words) < 60]


def test_the_page_of_items_has_all_states() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (LEARN / "items.md").read_text(), re.M)
    assert sorted(rows) == sorted(state.name.lower() for state in ItemState)
