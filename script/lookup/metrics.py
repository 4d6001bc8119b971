"""Each metric, with the text that a scrape has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from foqs.admin.families import GROUPS, Family
from foqs.cli import push_metrics, worker_metrics
from script.lookup.markdown import table

_GC_LABELS = ("generation",)
_HEAD = ("name", "kind", "labels", "value")


def families(group: Iterable[Family]) -> str:
    return table(_HEAD, (_row(one.name, one.kind, one.labels, one.help) for one in group))


def process() -> str:
    """Return the table of a host's process: its own metrics, and those of the Prometheus client."""
    registry = CollectorRegistry()
    found = chain(ProcessCollector(registry=registry).collect(), GCCollector(registry=registry).collect())
    rows = [
        _row(
            one.name + "_total" * (one.type == "counter"),
            one.type,
            _GC_LABELS if one.name.startswith("python_gc") else (),
            one.documentation.rstrip(".") + ".",
        )
        for one in found
    ]
    return f"{families(GROUPS['process'])}\n{table(_HEAD, rows).split(chr(10), 2)[2]}"


PARTS: Mapping[str, Callable[[], str]] = {
    **{name: partial(families, group) for name, group in GROUPS.items()},
    "process": process,
    "workers": partial(families, worker_metrics.FAMILIES.values()),
    "push": partial(families, push_metrics.FAMILIES.values()),
}


def _row(name: str, kind: str, labels: Iterable[str], text: str) -> tuple[str, ...]:
    return f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text
