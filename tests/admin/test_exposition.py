"""The format of a scrape, and its agreement with docs/reference/metrics.md."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from foqs.admin.exposition import render
from foqs.admin.families import FAMILIES
from foqs.cli import push_metrics, worker_metrics
from foqs.counters import Histogram

ALL = {**FAMILIES, **worker_metrics.FAMILIES, **push_metrics.FAMILIES}
PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `((?:foqs|process|python)_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


def test_every_family_is_in_the_page_and_nothing_else() -> None:
    text, _ = render({}, "", ALL)
    exported = dict(re.findall(r"^# TYPE (\S+) (\w+)", text.decode(), re.MULTILINE))
    told = {name: kind for name, kind, _ in ROW.findall(PAGE.read_text())}
    assert told == exported


def test_the_page_names_the_labels() -> None:
    told = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, _, labels in ROW.findall(PAGE.read_text())}
    assert {name: told[name] for name in ALL} == {name: family.labels for name, family in ALL.items()}


def test_units_and_suffixes_are_those_of_prometheus() -> None:
    for name, family in ALL.items():
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert not re.search(r"_(ms|mib|count|sum|bucket)$", name), name
        assert family.help.endswith("."), name


def test_a_histogram() -> None:
    histogram = Histogram((0.5, 2.0))
    for value in (0.25, 0.5, 1.0, 8.0):
        histogram.observe(value)
    text, _ = render({"foqs_shard_trip_seconds": [(("3",), histogram)]}, "")
    (family,) = [one for one in text_string_to_metric_families(text.decode()) if one.name == "foqs_shard_trip_seconds"]
    assert [(one.name.removeprefix(family.name), one.labels.get("le"), one.value) for one in family.samples] == [
        ("_bucket", "0.5", 2),
        ("_bucket", "2.0", 3),
        ("_bucket", "+Inf", 4),
        ("_count", None, 4),
        ("_sum", None, 9.75),
    ]
    assert {one.labels["shard"] for one in family.samples} == {"3"}


def test_names_with_anything_in_them() -> None:
    name = 'a"b\\c,{x="y"} é'
    text, _ = render({"foqs_items_enqueued_total": [((name,), 3)]}, "")
    (sample,) = [
        sample
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "foqs_items_enqueued_total"
    ]
    assert (sample.labels, sample.value) == ({"namespace": name}, 3)


def test_the_format_that_is_asked_for() -> None:
    plain, plain_type = render({}, "text/plain;version=0.0.4")
    open_, open_type = render({}, "application/openmetrics-text;version=1.0.0")
    assert plain_type.startswith("text/plain")
    assert open_type.startswith("application/openmetrics-text")
    assert open_.endswith(b"# EOF\n")
    assert not plain.endswith(b"# EOF\n")
