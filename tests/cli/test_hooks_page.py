"""The scripts of docs/do/hooks.md, on samples that the page does not try."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import Client, FailureCause, ItemSpec
from tests.support.live import client, host
from tests.support.pages import DOCS, blocks

__all__ = ["client", "host"]  # fixtures
SCRIPTS = {block.title: block.text for block in blocks((DOCS / "do/hooks.md").read_text()) if block.language == "lua"}


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
