"""Runs the scripts, the code and the commands of docs/do/hooks.md as written, but for the address."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from foqs.client import Client, FailureCause, ItemSpec
from tests.api.hosts import ROOT, foqs
from tests.support.live import client, host

__all__ = ["client", "host"]  # fixtures
PAGE = (ROOT / "docs/do/hooks.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```\n", PAGE, re.M | re.S)


SCRIPTS = {source.split("\n", 1)[0].removeprefix("-- "): source for source in blocks("lua")}


def test_the_commands_run_on_the_scripts(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (item,) = blocks("json")
    Path("item.json").write_text(item)
    for name, source in SCRIPTS.items():
        Path(name).write_text(source)
    said: dict[str, list[Any]] = {}
    for words in "".join(blocks("sh")).splitlines():
        command, _, file = words.partition(" < ")
        stdin = Path(file).read_text() if file else ""
        done = foqs(*shlex.split(command)[1:], env={"FOQS_ADDRESS": client.address}, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), words
        said[" ".join(shlex.split(command)[1:4])] = [line for line in done.stdout.splitlines() if line]
    (tried,) = map(json.loads, said["hook try route.lua"])
    assert tried["item"] == {"topic": "sample", "fairness_key": "acme", "weight": 1, "priority": 0}
    (taken,) = map(json.loads, said["dequeue jobs --ns"])
    assert taken["fairness_key"] == "acme"
    (tried,) = map(json.loads, said["hook try retry.lua"])
    assert (tried["action"], tried["delay_ms"]) == ("retry", 60_000)
    listed = [json.loads(line) for line in said["hook list --ns"]]
    assert [(one["script"], one["named_by"]) for one in listed] == [
        ("retry", ["topic.jobs: on_failure"]),
        ("route", ["topic.jobs: on_enqueue"]),
    ]
    counted = [json.loads(line) for line in said["hook stats jobs"]]
    assert [(one["hook"], one["calls"], one["failures"]) for one in counted] == [
        ("on_enqueue", 1, 0),
        ("on_failure", 0, 0),
    ]


@pytest.mark.parametrize(
    ("name", "headers", "payload", "expected"),
    [
        ("route.lua", {"customer": "acme"}, b"x", {"fairness_key": "acme", "weight": 1}),
        ("route.lua", None, b"x", {"fairness_key": "", "weight": 1}),
        ("limits.lua", {"customer": "acme"}, b"x", {"throttle_keys": ["customer:acme"], "ttl_ms": 86_400_000}),
        ("limits.lua", {"customer": "acme"}, b"x" * 100_001, {"throttle_keys": ["customer:acme", "large"]}),
        ("limits.lua", None, b"x", "the header customer is missing"),
    ],
)
def test_the_scripts_of_enqueues(
    client: Client, name: str, headers: dict[str, str] | None, payload: bytes, expected: Any
) -> None:
    tried = client.try_hook(ItemSpec("jobs", payload, headers=headers), source=SCRIPTS[name])
    if isinstance(expected, str):
        assert tried.refuse == expected
    else:
        assert {field: getattr(tried.item, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("headers", "reason", "expected"),
    [
        (None, "550 no such user", ("dead", None)),
        ({"kind": "ping"}, "", ("drop", None)),
        (None, "429 slow down", ("retry", 60_000)),
        (None, "451", (None, None)),
    ],
)
def test_the_script_of_failures(
    client: Client, headers: dict[str, str] | None, reason: str, expected: tuple[str | None, int | None]
) -> None:
    tried = client.try_hook(
        ItemSpec("jobs", b"x", headers=headers), hook="on_failure", source=SCRIPTS["retry.lua"],
        cause=FailureCause.FAILED, reason=reason,
    )  # fmt: skip
    assert tried.error is None
    assert (tried.action, tried.delay_ms) == expected


def test_the_code_without_lua_sets_the_same_fields(client: Client) -> None:
    exec("".join(blocks("python")).replace("127.0.0.1:7707", client.address), {})
