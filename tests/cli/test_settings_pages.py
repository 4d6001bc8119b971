"""docs/run/policies.md and docs/run/settings.md: their commands and their program work as written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from foqs.client import Client
from tests.api.hosts import foqs
from tests.support.live import client, host
from tests.support.pages import DOCS, blocks

__all__ = ["client", "host"]  # fixtures
pytestmark = pytest.mark.process


def typed(client: Client, page: str) -> None:
    """Type the commands of a page in order, in the client's namespace."""
    own = page.replace("--ns shop", f"--ns {client.namespace}")
    for line in [line for one in blocks(own) if one.language == "sh" for line in one.text.splitlines()]:
        words = shlex.split(line, comments=True)
        into = words.index(">") if ">" in words else len(words)
        done = foqs(*words[1:into], env={"FOQS_ADDRESS": client.address, "FOQS_NAMESPACE": client.namespace})
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if into < len(words):
            Path(words[into + 1]).write_text(done.stdout)


def test_the_commands_of_policies(client: Client) -> None:
    typed(client, (DOCS / "run/policies.md").read_text())
    ((key, value),) = client.settings().entries.items()
    left = {"closed": True, "paused_tenants": ["acme"], "retry": {"kind": "constant"}}
    assert (key, json.loads(value)) == ("topic.mail", left)


def test_the_commands_of_settings(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for plan in ("bronze", "silver"):
        client.put_settings({"plans/acme": plan})
    asks = "foqs settings revert 41 --ns shop"
    page = (DOCS / "run/settings.md").read_text().replace(asks, f"{asks} --yes")
    typed(client, page.replace(" 41 ", " 1 "))
    assert client.settings().entries == {"topic.mail": '{"max_attempts": 5}'}


def test_the_program_of_settings(client: Client) -> None:
    (program,) = [one.text for one in blocks((DOCS / "run/settings.md").read_text()) if one.language == "python"]
    exec(program.replace("127.0.0.1:7707", client.address).replace('"shop"', repr(client.namespace)), {})
    entries = client.settings().entries
    assert (list(entries), json.loads(entries["throttle.api"])) == (["throttle.api"], {"per_second": 10, "burst": 20})
