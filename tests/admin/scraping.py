"""An operator's tools: HTTP to an admin port, and what a scrape says."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.service.hosts import HostProcess, until

Address = tuple[str, int]
# With the end of the line: what is written just now may be read in part.
_LISTENING = re.compile(r"admin\.listening +address=([\d.]+):(\d+)\s")
PATIENCE_S = 30.0


def admin(host: HostProcess) -> Address:
    """Waits for the line that says where."""
    until(lambda: _LISTENING.search(host.said()) is not None or not host.running, "the admin port")
    found = _LISTENING.search(host.said())
    assert found is not None, host.said()
    return found[1], int(found[2])


def get(address: Address, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """(status, body)"""
    connection = HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def missing(address: Address) -> list[str]:
    """What a host lacks to be ready; its status has to say the same."""
    status, text = get(address, "/readyz")
    told: dict[str, Any] = json.loads(text)
    assert (status, told["ready"]) == ((503, False) if told["missing"] else (200, True))
    return list(told["missing"])


class Scrape:
    """One answer of /metrics."""

    def __init__(self, address: Address) -> None:
        status, self.text = get(address, "/metrics")
        assert status == 200
        self.families = set(re.findall(r"^# TYPE (\S+) ", self.text, re.MULTILINE))
        self._samples = [sample for family in text_string_to_metric_families(self.text) for sample in family.samples]
        keys = [(sample.name, *sorted(sample.labels.items())) for sample in self._samples]
        assert len(set(keys)) == len(keys), "a series is there twice"

    def of(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of each series that has these labels."""
        wanted = labels.items()
        return [(one.labels, one.value) for one in self._samples if one.name == name and wanted <= one.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        found = self.of(name, **labels)
        assert found, f"no series {name} {labels}"
        return sum(value for _, value in found)

    def values(self, name: str, label: str, **labels: str) -> set[str]:
        """Those of a label."""
        return {found[label] for found, _ in self.of(name, **labels)}
