"""The pages of the site: a test does what each page says, and holds pages to their length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.hosts import ROOT
from tests.support.pages import DOCS, Reader, blocks, pages

MOST_WORDS = 1_200
LOOK_UP = ("reference/", "decisions.md", "run/runbook.md")
"""Pages to look things up in: they are as long as their tables."""
LONG: dict[str, int] = {
    "do/django.md": 1232,
    "do/failures.md": 2886,
    "do/fairness.md": 2278,
    "do/hooks.md": 1730,
    "do/ordered.md": 1208,
    "do/push.md": 1276,
    "do/results.md": 1217,
    "do/spark.md": 4676,
    "do/stopping.md": 1209,
    "do/tasks.md": 3609,
    "do/workers.md": 2873,
    "run/console.md": 2337,
    "run/deployment.md": 2828,
    "run/disaster.md": 2423,
    "run/operations.md": 16539,
    "run/rotation.md": 2021,
    "run/security.md": 2636,
    "run/settings.md": 1453,
    "why/benchmarks.md": 7630,
    "why/internals.md": 15197,
    "why/reliability.md": 6847,
}
"""Pages that are still longer, and the words that they have. Delete an entry with its page's excess."""
READ = ("index.md", "start/", "learn/")
"""Parts of the site whose pages a test does."""
ELSEWHERE: dict[str, str] = {
    "do/batches.md": "tests/client/test_batch_life.py",
    "do/failures.md": "tests/cli/test_failures_page.py",
    "do/fairness.md": "tests/cli/test_fairness_page.py",
    "do/hooks.md": "tests/cli/test_hooks_page.py",
    "do/languages.md": "tests/examples/test_languages.py",
    "do/outbox.md": "tests/outbox/test_page.py",
    "do/push.md": "tests/cli/test_push.py",
    "do/spark.md": "tests/spark/test_docs.py",
    "do/stopping.md": "tests/cli/test_stopping.py",
    "do/tasks.md": "tests/tasks/test_page.py",
    "do/testing.md": "tests/testing/test_plugin.py",
}
"""Pages of those parts with a test of their own: they need servers, or state which a reader sees by eye."""
PAGES = {str(page.relative_to(DOCS)): page for page in pages()}


def words(text: str) -> int:
    """Count the words of a page as `wc -w` does."""
    return len(text.split())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short(name: str) -> None:
    if not name.startswith(LOOK_UP):
        assert words(PAGES[name].read_text()) <= LONG.get(name, MOST_WORDS)


def test_a_long_page_needs_its_exception() -> None:
    assert not [name for name in LONG if name not in PAGES or words(PAGES[name].read_text()) <= MOST_WORDS]


def test_the_readme_is_short() -> None:
    assert words((ROOT / "README.md").read_text()) <= 900


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    made = Reader(PAGES[request.param], tmp_path)
    yield made
    made.close()


@pytest.mark.process
@pytest.mark.parametrize(
    "reader",
    [
        name
        for name, page in PAGES.items()
        if name.startswith(READ) and name not in ELSEWHERE and blocks(page.read_text())
    ],
    indirect=True,
)
def test_a_page_works_as_printed(reader: Reader) -> None:
    reader.follow()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_page_is_read_by_the_test_that_claims_it(name: str) -> None:
    assert name.removesuffix(".md") in (ROOT / ELSEWHERE[name]).read_text()


def test_each_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(PAGES)
