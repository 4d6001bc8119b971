"""The style of all pages: readable in both modes, and nothing in it is fetched."""

import re

import pytest

from foqs.page.environment import stylesheet
from tests.support.structure import ROOT

STYLE = stylesheet()
CONSOLE = (ROOT / "foqs/console/static/console.css").read_text()
BLOCKS = re.findall(r":root\{(.*?)\}", STYLE, re.S)
LIGHT, DARK = (dict(re.findall(r"--([\w-]+):(#\w+)", block)) for block in BLOCKS)
TEXT = [
    *((text, back) for text in ("ink", "soft", "link", "bad") for back in ("paper", "back")),
    *((text, "faint") for text in ("ink", "soft")),
    *(("on-link", back) for back in ("link", "bad")),
    *((text, f"{kind}-back") for kind in ("ok", "warn", "bad") for text in (kind, "ink", "link")),
]
MARKS = re.findall(r"\.[\w-]+\{--mark:var\(--([\w-]+)\)\}", STYLE)
GRAPHICS = [
    *((mark, "paper") for mark in MARKS),
    *((mark, back) for mark in ("edge", "link", "ok", "warn", "bad") for back in ("paper", "back")),
]


def luminance(colour: str) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_known_colours():
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast(mode):
    ratios = {pair: contrast(mode[pair[0]], mode[pair[1]]) for pair in TEXT}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("mode", [LIGHT, DARK], ids=["light", "dark"])
def test_graphics_have_contrast(mode):
    ratios = {pair: contrast(mode[pair[0]], mode[pair[1]]) for pair in GRAPHICS}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 3} == {}


def test_each_colour_has_both_modes():
    assert LIGHT.keys() == DARK.keys()
    assert set(re.findall(r"var\(--([\w-]+)", STYLE)) - {"mark"} == LIGHT.keys()
    rest = STYLE
    for block in BLOCKS:
        rest = rest.replace(block, "")
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", rest)


@pytest.mark.parametrize(
    "template", sorted(path.relative_to(ROOT / "foqs").as_posix() for path in (ROOT / "foqs").rglob("*.html"))
)
def test_classes_of_templates_are_in_the_style(template):
    named = re.findall(r' class="([^"{}]+)"', (ROOT / "foqs" / template).read_text())
    style = STYLE + (CONSOLE if template.startswith("console/") else "")
    classes = {name for value in named for name in value.split()}
    assert sorted(classes - set(re.findall(r"\.([a-z][\w-]*)", style))) == []


def test_marks_are_known():
    assert {"ready", "delayed", "leased", "dead", "kept", "age", "priority", "size", "hue-6", "bad"} <= set(MARKS)


def test_a_printed_page_is_light():
    assert "@media screen and (prefers-color-scheme:dark)" in STYLE
    assert STYLE.count("prefers-color-scheme") == 1


@pytest.mark.parametrize("word", ["http:", "https:", "url(", "@import", "//", "<"])
def test_nothing_is_fetched(word):
    """A page may hold the style in an element <style>."""
    assert word not in STYLE
