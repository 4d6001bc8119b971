"""Runs the code and the commands of docs/do/fairness.md as written, but for the address."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from foqs.client import Client
from tests.api.hosts import ROOT, foqs
from tests.support.live import client, host

__all__ = ["client", "host"]  # fixtures
PAGE = (ROOT / "docs/do/fairness.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```\n", PAGE, re.M | re.S)


def test_the_code_and_then_the_commands_of_the_page(client: Client) -> None:
    names: dict[str, Any] = {}
    exec("".join(blocks("python")).replace("127.0.0.1:7707", client.address), names)
    names["client"].close()
    env = {"FOQS_ADDRESS": client.address}
    made: dict[str, Any] = {}
    for words in "".join(blocks("sh")).splitlines():
        done = foqs(*shlex.split(words, comments=True)[1:], env=env)
        assert (done.returncode, done.stderr) == (0, ""), words
        left = foqs("settings", "get", "--ns", "shop", env=env).stdout.splitlines()
        made |= {line["key"]: json.loads(line["value"]) for line in map(json.loads, left)}
    assert made == {
        "weight.gold:*": 4,
        "topic.mail": {"fair": {"weights": {"acme": 2}, "unit": "busy"}},
        "throttle.api": {"per_second": 10, "burst": 20},
        "throttle.customer:*": {"per_second": 0.5},
        "topic.sync": {"throttles": ["api"]},
        "throttle.gpu": {"concurrency": 4},
        "throttle.import:*": {"concurrency": 2, "timeout_ms": 600_000},
        "topic.resize": {"per_worker": 2},
    }
