"""Numbers and times as words."""

import pytest

from foqs.page import words


@pytest.mark.parametrize(
    ("word", "given", "shown"),
    [
        (words.number, 1_250_000, "1,250,000"),
        (words.duration, -5, "0"),
        (words.duration, 0, "0"),
        (words.duration, 5, "5 ms"),
        (words.duration, 999, "999 ms"),
        (words.duration, 1_500, "1.5 s"),
        (words.duration, 90_000, "1.5 min"),
        (words.duration, 7_200_000, "2 h"),
        (words.duration, 864_000_000, "10 d"),
        (words.ago, -5, "now"),
        (words.ago, 7_200_000, "2 h ago"),
        (words.size, 0, "0 B"),
        (words.size, 1023, "1023 B"),
        (words.size, 1024, "1 KiB"),
        (words.size, 10 << 20, "10 MiB"),
        (words.size, 3 << 40, "3 TiB"),
        (words.short, 9.94, "9.9"),
        (words.short, 9.96, "10"),
        (words.short, 1_234.5, "1,234"),
        (words.short_number, 999, "999"),
        (words.short_number, 12_345, "12k"),
        (words.short_number, 2_000_000_000, "2G"),
        (words.moment, 1_772_625_600_999, "2026-03-04 12:00:00 UTC"),
        (words.unit, 2 / 3, "0.7"),
    ],
)
def test_a_value_as_words(word, given, shown):
    assert word(given) == shown


def test_the_noun_follows_the_number():
    assert [words.many(count, "topic") for count in (0, 1, 2_000)] == ["0 topics", "1 topic", "2,000 topics"]
    assert words.many(2, "delivery", "deliveries") == "2 deliveries"


@pytest.mark.parametrize(
    ("part", "whole", "shown"), [(1, 3, "33 %"), (1, 1_000, "<1 %"), (0, 5, "0 %"), (5, 5, "100 %"), (0, 0, "–")]
)
def test_a_part_in_percent(part, whole, shown):
    assert words.share(part, whole) == shown
