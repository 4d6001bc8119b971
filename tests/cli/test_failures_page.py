"""The tables of the pages about failures, topics and workers."""

from __future__ import annotations

import pytest

from foqs.client import AckPolicy
from foqs.policies.topic_policy import PolicyEntry
from tests.api.hosts import ROOT


@pytest.mark.parametrize("name", [*PolicyEntry.model_fields, *AckPolicy.__members__])
def test_a_field_or_an_ack_policy_has_one_row(name: str) -> None:
    """A second table of the same names is forgotten when the first one changes: the other pages link to it."""
    pages = [ROOT / f"docs/{page}.md" for page in ("do/retries", "run/operations", "do/workers")]
    cells = [line.split("|")[1] for page in pages for line in page.read_text().splitlines() if line.startswith("| `")]
    assert len([cell for cell in cells if f"`{name}`" in cell]) == 1
