#!/usr/bin/env python3
"""Writes the parts of docs/reference that the code says: script/reference.py [--check]

A page holds parts between two comments, `<!-- NAME: written by script/reference.py -->` and `<!-- end of NAME -->`;
`PARTS` says who writes each. The text around them is written by hand. `--check` writes nothing, and ends with status 1
if a page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # or the pages would tell of another checkout, where foqs is installed from

from script.lookup import api, cli, config, errors, idl, metrics, settings  # noqa: E402

PAGES = ROOT / "docs" / "reference"
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"contents": cli.contents, "connection": cli.connection, "commands": cli.commands},
    "configuration.md": {"sections": config.sections, "keys": config.keys},
    "settings.md": settings.PARTS,
    "metrics.md": metrics.PARTS,
    "errors.md": {"codes": errors.codes, "exceptions": errors.exceptions},
    "api.md": api.PARTS,
    "idl.md": {"head": idl.head, "methods": idl.methods, "types": idl.types},
}
_PART = re.compile(
    r"(?P<begin>^<!-- (?P<name>[\w-]+): written by script/reference\.py -->\n)(?P<text>.*?)"
    r"(?P<end>^<!-- end of (?P=name) -->$)",
    re.M | re.S,
)


class Wrong(Exception):
    """A page that does not hold its parts."""


def current(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return the text of a page with its parts as the code says them now. Raises Wrong."""
    found = [one["name"] for one in _PART.finditer(page)]
    if found != [*parts]:
        raise Wrong(f"it holds the parts {', '.join(found) or '(none)'}, not {', '.join(parts)}")
    return _PART.sub(lambda one: f"{one['begin']}\n{parts[one['name']]().strip()}\n\n{one['end']}", page)


def main() -> int:
    check, stale = "--check" in sys.argv[1:], []
    for name, parts in PARTS.items():
        page = PAGES / name
        try:
            text = current(page.read_text(), parts)
        except Wrong as wrong:
            print(f"{page.relative_to(ROOT)}: {wrong}", file=sys.stderr)
            return 1
        if text != page.read_text():
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(text)
    if check and stale:
        print("not current; script/reference.py writes them:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
