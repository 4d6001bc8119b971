"""The line chart of the shared templates: its geometry, its table, and text that a user chose."""

import re
from itertools import pairwise

import pytest

from foqs.page.environment import environment
from foqs.page.lines import BOTTOM, LEFT, MOST_POINTS, RIGHT, TOP, plot
from tests.support.html import Page

TEMPLATE = environment().from_string(
    '{% from "parts.html" import line_chart %}{{ line_chart(title, description, labels, series) }}'
)
HOSTILE = [
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a&amp;b",
    "'onload='x",
    "日本\u202ex",
]


def drawn(labels, series, title="Items", description="in 10 s"):
    return TEMPLATE.render(title=title, description=description, labels=labels, series=series)


def labels_of(points):
    return [f"{at // 360:02}:{at % 360 // 6:02}:{at % 6}0" for at in range(points)]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_only_text(text):
    page = Page(drawn([text] * 2, [(text, text, [1, 2])], text, text))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert page.words.count(text) == 9  # title, desc, two marks, the line, the legend, the head, two rows
    assert ("class", text) in page.attributes


def test_a_screen_reader_gets_title_and_description():
    page = Page(drawn(["12:00"], [("acked", "hue-1", [3])]))
    attributes = dict(reversed(page.attributes))
    ids = [value for name, value in page.attributes if name == "id"]
    assert ("role", "img") in page.attributes
    assert attributes["aria-labelledby"].split() == ids[:2]
    assert page.words[page.words.index("Items") :][:2] == ["Items", "in 10 s"]


def test_charts_of_one_page_have_ids_of_their_own():
    page = Page("".join(drawn(["12:00"], [("a", "hue-1", [3])], title) for title in ("Items", "Failures")))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.parametrize(("labels", "series"), [([], []), ([], [("a", "hue-1", [])]), (["12:00"], [])])
def test_without_numbers(labels, series):
    page = Page(drawn(labels, series))
    assert page.tags == ["p"]
    assert "".join(page.words).strip() == "No numbers yet."


def test_one_point_is_a_dot():
    page = Page(drawn(["12:00"], [("a", "hue-1", [3])]))
    assert page.tags.count("circle") == 1
    assert page.tags.count("polyline") == 1  # in the legend
    assert page.cells == [["From", "a"], ["12:00", "3"]]


@pytest.mark.parametrize("points", [1, 2, 11, 12, 13, 100, 359, 360])
def test_the_table_sums_up_to_the_series(points):
    series = [("a", "hue-1", list(range(points))), ("b", "hue-2", [7] * points)]
    labels = labels_of(points)
    page = Page(drawn(labels, series))
    (_, *rows) = page.cells
    assert len(rows) <= 12
    assert rows[0][0] == labels[0]
    for column, (_, _, counts) in enumerate(series, 1):
        assert sum(int(row[column].replace(",", "")) for row in rows) == sum(counts)
    assert f"{sum(range(points)):,}" in page.words  # in the legend


def test_an_hour_has_rows_of_five_minutes():
    page = Page(drawn(labels_of(MOST_POINTS), [("a", "hue-1", [1] * MOST_POINTS)]))
    assert page.cells[1:] == [[f"00:{minute:02}:00", "30"] for minute in range(0, 60, 5)]
    (points,) = (value for name, value in page.attributes if name == "points" and value != "0,5 28,5")
    assert len(points.split()) == MOST_POINTS


@pytest.mark.parametrize("counts", [[0] * 361, [0], [0] * 3])
def test_a_chart_that_cannot_be_drawn(counts):
    labels = labels_of(361 if len(counts) > 3 else 2)
    with pytest.raises(ValueError, match="at most 360 labels"):
        plot(labels, [("a", "hue-1", counts)])


@pytest.mark.parametrize(
    ("highest", "top"),
    [(0, 2), (1, 2), (2, 2), (3, 4), (9, 10), (10, 10), (11, 20), (41, 60), (99, 100), (999_999, 1_000_000)],
)
def test_the_upper_edge_is_a_round_number(highest, top):
    levels = plot(["a", "b"], [("a", "hue-1", [0, highest])]).levels
    assert [count for _, count in levels] == [0, top // 2, top]


def test_points_are_inside_the_plot():
    found = plot(labels_of(50), [("a", "hue-1", [at * at for at in range(50)]), ("b", "hue-2", [2_500] * 50)])
    assert found.lines[0].points[0] == (LEFT, BOTTOM)
    for line in found.lines:
        assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in line.points)
        assert [x for x, _ in line.points] == sorted({x for x, _ in line.points})


def test_lines_differ_without_colours():
    text = drawn(["a", "b"], [(f"s{at}", "hue-1", [at, 0]) for at in range(6)])
    dashes = re.findall('stroke-dasharray="([^"]+)"', text)
    assert len(set(dashes)) == 6
    assert dashes[:6] == dashes[6:]  # the legend shows each


@pytest.mark.parametrize("points", [1, 2, 7, 8, 100, 360])
def test_labels_below_the_plot_do_not_overlap(points):
    marks = [x for x, _ in plot(labels_of(points), [("a", "hue-1", [0] * points)]).marks]
    assert 1 <= len(marks) <= 8
    assert all(after - before >= 70 for before, after in pairwise(marks))
