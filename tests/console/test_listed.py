"""The lists of pages and changes, and docs/run/console.md."""

import re
from hashlib import sha256
from pathlib import Path

from foqs.console.app import ACTIONS, PAGES
from foqs.console.drawing import STATIC

ROOT = Path(__file__).parent.parent.parent
HTMX_SHA256 = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
"""Of dist/htmx.min.js of htmx.org 2.0.11 in the registry of npm."""


def test_each_page_is_described() -> None:
    rows = re.findall(r"^\| (`/.*?) \| ", (ROOT / "docs/run/console.md").read_text(), re.MULTILINE)
    assert {path for row in rows for path in re.findall(r"`(/\w*)`", row)} == {page.path for page in PAGES if page.key}


def test_paths_and_keys_are_unique() -> None:
    paths, keys = [page.path for page in PAGES], [page.key for page in PAGES if page.key]
    assert len(paths) == len(set(paths))
    assert len(keys) == len(set(keys))
    assert len({action.path for action in ACTIONS}) == len(ACTIONS)


def test_htmx_is_the_pinned_one() -> None:
    (name,) = [name for name in STATIC if name.startswith("htmx")]
    data = (ROOT / "foqs" / "console" / "static" / name).read_bytes()
    assert sha256(data).hexdigest() == HTMX_SHA256
