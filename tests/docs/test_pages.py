"""The pages of the site: a test does what each page says, and holds pages to their length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.hosts import ROOT
from tests.support.pages import DOCS, Reader, blocks, pages

MOST_WORDS = 1_200
LOOK_UP = ("reference/", "decisions.md", "run/runbook.md", "why/comparison.md")
"""Pages to look things up in: their tables may be long. Most of the comparison is tables and their sources."""
READ = (
    "index.md", "start/", "learn/", "do/", "run/items.md", "run/dead-letters.md", "run/systemd.md", "run/tracing.md",
    "why/celery.md",
)  # fmt: skip
"""Parts of the site whose pages a test does."""
ELSEWHERE: dict[str, str] = {
    "do/languages.md": "tests/examples/test_languages.py",
    "do/spark.md": "tests/spark/test_docs.py",
    "run/on-call.md": "tests/cluster/test_on_call.py",
    "run/policies.md": "tests/cli/test_settings_pages.py",
    "run/settings.md": "tests/cli/test_settings_pages.py",
    "run/throttles.md": "tests/cli/test_throttle.py",
    "run/backup.md": "tests/cluster/test_backup_page.py",
    "run/cluster-from-one-host.md": "tests/cli/test_cluster_page.py",
    "run/deployment.md": "tests/cli/test_deployment_page.py",
    "run/failover.md": "tests/cluster/test_failover.py",
    "run/kubernetes.md": "tests/deploy/test_kubernetes.py",
    "run/rotation-databases.md": "tests/cluster/test_rotation_page.py",
    "run/rotation.md": "tests/cluster/test_rotation_page.py",
    "run/security.md": "tests/cli/test_security_docs.py",
    "run/tls.md": "tests/cluster/test_first_cluster_page.py",
    "start/first-cluster.md": "tests/cluster/test_first_cluster_page.py",
    "start/install.md": "tests/docs/test_install_page.py",
    **dict.fromkeys(
        ("run/older-copies.md", "run/zookeeper.md"), "tests/cluster/test_on_call.py",
    ),
    **dict.fromkeys(
        ("reference/configuration.md", "reference/errors.md", "reference/logs.md", "reference/metrics.md",
         "reference/settings.md", "run/capacity.md", "run/cluster.md", "run/console-access.md", "run/console.md",
         "run/databases.md", "run/explain.md", "run/losses.md", "run/processes.md", "run/quotas.md", "run/status.md",
         "run/watch.md", "why/benchmarks.md", "why/reliability.md"), "tests/docs/test_transcripts.py",
    ),
}  # fmt: skip
"""Pages with a test of their own: they need servers, or states that are hard to make."""
GENERATED = ("reference/cli.md", "reference/idl.md")
PAGES = {str(page.relative_to(DOCS)): page for page in pages()}


def words(text: str) -> int:
    """Count the words of a page as `wc -w` does."""
    return len(text.split())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short(name: str) -> None:
    if not name.startswith(LOOK_UP):
        assert words(PAGES[name].read_text()) <= MOST_WORDS


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


def test_each_block_has_a_test() -> None:
    """A block of text that follows no other block is a picture."""
    read = {name for name in PAGES if name.startswith(READ)} | {*ELSEWHERE, *GENERATED}
    found = {name: [one for one in blocks(PAGES[name].read_text()) if one.language != "text"] for name in PAGES}
    assert not [name for name, code in found.items() if code and name not in read]


def test_each_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(PAGES)
