"""The distribution's Prometheus: its checker, and a server of a test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from foqs_lab.servers.process import ServerProcess, free_port
from tests.api.hosts import until
from tests.conftest import required

_STOP_MS = 10_000
_ANSWER_S = 30.0


def program_or_skip(name: str) -> str:
    """Where `prometheus` or `promtool` is; skips the test, or fails it in CI, when it is not there."""
    path = shutil.which(name)
    if path is None:
        (pytest.fail if required() else pytest.skip)(f"no {name} found (script/setup test installs it)")
    return path


def promtool(*arguments: str | Path) -> str:
    """Return the output of promtool. The test fails with that output if promtool finds an error."""
    done = subprocess.run(
        [program_or_skip("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


class Prometheus:
    """Scrapes `targets` of the job "foqs" each second and evaluates `rules` as often. A context manager."""

    def __init__(self, folder: Path, targets: list[str], rules: str) -> None:
        self._program = program_or_skip("prometheus")
        (folder / "rules.yaml").write_text(rules)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "foqs", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._folder = folder
        self._port = free_port()

    def __enter__(self) -> Self:
        argv = [
            self._program,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._process = ServerProcess(argv, log=self._folder / "prometheus.log")
        until(lambda: self._ready() or not self._process.alive, "Prometheus")
        assert self._process.alive, self._process.log_tail()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop(grace_ms=_STOP_MS)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its samples now."""
        return self._get("query", {"query": expression})["result"]  # type: ignore[no-any-return]

    def has_series(self, selector: str) -> bool:
        return bool(self._get("series", {"match[]": selector}))

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> list[dict[str, Any]]:
        return [alert for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]

    def _get(self, path: str, arguments: Mapping[str, str] | None = None) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(arguments or {})}", timeout=_ANSWER_S) as answer:
            return json.load(answer)["data"]

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self._url}/-/ready", timeout=_ANSWER_S) as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError):
            return False

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"
