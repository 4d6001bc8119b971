"""Helpers that send HTTP requests to a host's admin port and parse its metrics."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.api.hosts import HostProcess, until

Address = tuple[str, int]
# The final \s matches the line end: a test may read the file while the host still writes the line.
_LISTENING = re.compile(r"admin\.listening +address=([\d.]+):(\d+)\s")
PATIENCE_S = 30.0


def admin(host: HostProcess) -> Address:
    """Wait until the host logs the address of its admin port, and return it."""
    until(lambda: _LISTENING.search(host.said()) is not None or not host.running, "the admin port")
    found = _LISTENING.search(host.said())
    assert found is not None, host.said()
    return found[1], int(found[2])


def get(address: Address, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return (status, body)."""
    connection = HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def missing(address: Address) -> list[str]:
    """Return the parts that a host lacks to be ready. The HTTP status has to agree with the body."""
    status, text = get(address, "/readyz")
    told: dict[str, Any] = json.loads(text)
    assert (status, told["ready"]) == ((503, False) if told["missing"] else (200, True))
    return list(told["missing"])


def lacking(address: Address) -> list[str]:
    """Return `missing`, and the notes of `/readyz`: nothing if the host serves all its shards."""
    return [*missing(address), *json.loads(get(address, "/readyz")[1])["notes"]]


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
        """Return (labels, value) of each series that has these labels."""
        wanted = labels.items()
        return [(one.labels, one.value) for one in self._samples if one.name == name and wanted <= one.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        found = self.of(name, **labels)
        assert found, f"no series {name} {labels}"
        return sum(value for _, value in found)

    def values(self, name: str, label: str, **labels: str) -> set[str]:
        """Return the values of the label `label`."""
        return {found[label] for found, _ in self.of(name, **labels)}
