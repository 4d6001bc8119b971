"""The keys of foqs.toml, as `foqs config explain --markdown` prints them."""

from __future__ import annotations

import re
from functools import cache

from typer.testing import CliRunner

from foqs.cli.main import app
from script.lookup.markdown import anchor


def sections() -> str:
    """Return links to the tables."""
    names = re.findall(r"^### `(.*)`$", keys(), re.M)
    return " · ".join(f"[`{name}`](#{anchor(name)})" for name in names)


@cache
def keys() -> str:
    shown = CliRunner().invoke(app, ["config", "explain", "--markdown"])
    assert shown.exit_code == 0, shown.output
    return str(shown.stdout)
