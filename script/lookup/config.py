"""The keys of foqs.toml, as `foqs config explain --markdown` prints them."""

from __future__ import annotations

from typer.testing import CliRunner

from foqs.cli.main import app


def keys() -> str:
    shown = CliRunner().invoke(app, ["config", "explain", "--markdown"])
    assert shown.exit_code == 0, shown.output
    return str(shown.stdout)
