"""The values of metrics as text, rendered in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from foqs.admin.families import FAMILIES, Family
from foqs.counters import Histogram

Value = float | Histogram
Rows = Mapping[str, Sequence[tuple[tuple[str, ...], Value]]]
"""By the name of a metric: values of its labels, and the value."""


def render(rows: Rows, accept: str, families: Mapping[str, Family] = FAMILIES) -> tuple[bytes, str]:
    """Return (text, content type) for an Accept header. The text has every metric, even without a value."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Host(rows, families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Host(Collector):
    def __init__(self, rows: Rows, families: Mapping[str, Family]) -> None:
        self._rows = rows
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for family in self._families.values():
            yield _metric(family, self._rows.get(family.name, ()))


def _metric(family: Family, rows: Sequence[tuple[tuple[str, ...], Value]]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in rows:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, _cumulative(value), value.total)
        return histogram
    plain = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        family.name, family.help, labels=family.labels
    )
    for labels, value in rows:
        assert not isinstance(value, Histogram)
        plain.add_metric(labels, value)
    return plain


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True))
