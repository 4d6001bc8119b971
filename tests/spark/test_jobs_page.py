"""The page of a report: well-formed, self-contained, and safe for any topic name. Needs no Spark."""

import pytest

from foqs.spark.jobs.page import (
    AGES_MS,
    PRIORITIES,
    SIZES_BYTES,
    Figures,
    Report,
    Spread,
    Topic,
    age_labels,
    priority_labels,
    render,
    size_labels,
)
from tests.support.html import Page

NOW_MS = 1_772_625_600_000
SPREAD = Spread(1_000, 60_000, 3_600_000, 90_000_000)


def figures(items: int) -> Figures:
    ages = (items, *[0] * (len(AGES_MS) - 1))
    priorities = tuple(items if low == 0 else 0 for low in PRIORITIES)
    sizes = (0, items, *[0] * (len(SIZES_BYTES) - 2))
    spread = SPREAD if items else None
    leased = items // 4
    return Figures(
        items, items - leased, 0, leased, spread, spread, spread, items * 100, items * 80, 1.5, 7, items // 2,
        ages, priorities, sizes,
    )  # fmt: skip


def report(*topics: Topic, total: int | None = None, topic_count: int | None = None) -> Report:
    items = sum(topic.figures.items for topic in topics) if total is None else total
    return Report(
        NOW_MS, figures(items), len({topic.namespace for topic in topics}), topic_count or len(topics), topics
    )


def test_one_topic():
    page = Page(render(report(Topic("shop", "mail", figures(1_200), ((281474976710657, NOW_MS - 7_200_000),)))))
    row = page.row("mail")
    heads = page.cells[0]
    assert len(row) == len(heads)
    assert (row[heads.index("Items")], row[heads.index("Ready")], row[heads.index("Leased")]) == ("1,200", "900", "300")
    assert row[heads.index("Age p50")] == "1 s"
    assert row[heads.index("Bytes")] == "117 KiB"
    text = " ".join(page.words)
    assert "2026-03-04 12:00:00 UTC" in text
    assert "281474976710657" in text
    assert "2 h" in text
    assert page.tags.count("figure") == 3


def test_nothing_queued():
    page = Page(render(report()))
    assert "Nothing is queued." in page.words
    assert "table" not in page.tags


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "a&amp;b",
        "</style>",
        "'onload='x",
        "日本\u202ex",
        "x" * 255,
    ],
)
def test_names_are_only_text(name):
    text = render(report(Topic(name, name, figures(5), ((1, NOW_MS),))))
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    assert page.tags.count("style") == 1
    assert page.row(name)[:2] == [name, name]
    assert not [key for key, _ in page.attributes if key.startswith("on")]


def test_nothing_is_fetched():
    text = render(report(*(Topic("shop", f"t{n}", figures(n + 1), ((n, NOW_MS),)) for n in range(5))))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "use", "image", "a"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "style"} & {key for key, _ in page.attributes}
    for word in ("http:", "https:", "url(", "@import", "//"):
        assert word not in text


def test_topics_that_are_not_shown_are_summed():
    shown = tuple(Topic("shop", f"t{n}", figures(1_000)) for n in range(100))
    text = render(report(*shown, total=1_000_000, topic_count=1_000))
    row = Page(text).row("900 other topics")
    assert row[1] == "900,000"
    assert row[3:6] == ["675,000", "0", "225,000"]
    assert len(text) < 1_000_000


@pytest.mark.parametrize("low", [PRIORITIES[0], -1, 0, PRIORITIES[-1]])
def test_a_chart_of_the_outermost_priorities(low):
    """Nothing is left out at the ends."""
    some = figures(3)
    ends = Figures(
        *(getattr(some, name) for name in Figures.__slots__ if name not in ("ages", "priorities", "sizes")),
        some.ages, tuple(3 if one == low else 0 for one in PRIORITIES), some.sizes,
    )  # fmt: skip
    text = render(Report(NOW_MS, ends, 1, 1, (Topic("a", "b", ends),)))
    Page(text)
    label = priority_labels()[PRIORITIES.index(low)]
    assert f"<title>{label}: 3</title>" in text


def test_labels_of_charts():
    labels = priority_labels()
    assert len(labels) == len(PRIORITIES) == len(set(labels))
    assert (labels[0], labels[8], labels[-1], labels[PRIORITIES.index(-9)]) == ("≤-1G", "≤-10", "≥1G", "-9")
    assert len(age_labels()) == len(AGES_MS)
    assert len(size_labels()) == len(SIZES_BYTES)
    assert list(PRIORITIES) == sorted(set(PRIORITIES))
