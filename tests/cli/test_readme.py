"""README.md works as printed, and no page installs foqs from a place that does not have it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.api.hosts import ROOT
from tests.support.pages import DOCS, Reader, blocks

README = ROOT / "README.md"


@pytest.mark.process
def test_the_readme_works_as_printed(tmp_path: Path) -> None:
    """It installs as docs/start/install.md does, which has a test of its own: the rest runs here."""
    text = README.read_text()
    (install,) = [block.text for block in blocks(text) if "pip install" in block.text]
    assert install in (DOCS / "start/install.md").read_text()
    page = tmp_path / README.name
    page.write_text(text.replace(f"```sh\n{install}```\n", ""))
    assert "pip install" not in page.read_text()
    reader = Reader(page, tmp_path)
    try:
        reader.follow()
    finally:
        reader.close()


def test_the_readme_shows_a_picture_that_a_script_makes() -> None:
    (picture,) = re.findall(r"!\[[^]]+\]\((\S+)\)", README.read_text())
    name = Path(picture).stem.removeprefix("console-")
    assert (ROOT / picture).is_file()
    assert f'"{name}"' in (ROOT / "script" / "screenshots.py").read_text()


def test_no_page_installs_foqs_from_an_index() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in [README, *sorted(DOCS.rglob("*.md"))]:
        for wanted in re.findall(r"pip install (?:-[\w-]+ )*([^`\n#&]+)", page.read_text()):
            name = wanted.strip()
            assert not re.match(r"'?foqs\b", name), f"{page.name}: foqs is on no index: {name}"
            if "[" in name:
                found = re.fullmatch(r"'[^']*\[([\w,]+)\]'", name)
                assert found is not None, f"{page.name}: a shell takes brackets for a pattern: {name}"
                assert set(found[1].split(",")) <= extras
