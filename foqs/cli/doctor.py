"""`foqs doctor`: find faults of a setup, and name their remedies."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.cli.errors import piped
from foqs.cli.help import OPERATE, command
from foqs.cli.operators import ConfigOption, quietly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foqs.doctor.check import Check

TIMEOUT_S = 3.0


def register(app: typer.Typer) -> None:
    command(app, "foqs doctor --config foqs.toml", "foqs doctor --config foqs.toml --workers 4 --json", group=OPERATE)(
        doctor
    )


@piped
def doctor(
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints one JSON document.")] = False,
    workers: Annotated[
        int, typer.Option(min=0, max=64, help="The command also checks the ports of this many workers of `foqs serve`.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="The command waits this many seconds for each answer.")
    ] = TIMEOUT_S,
) -> None:
    """Find faults of a setup, and name their remedies.

    The command checks configuration, databases, ZooKeeper, ports and certificates. It changes nothing, and can run
    beside living hosts. It exits with 1 if it finds a fault; warnings alone leave the status at 0.
    """
    import asyncio

    from foqs.doctor.check import Verdict, worst
    from foqs.doctor.examine import examine

    quietly()
    checks = asyncio.run(examine(config, range(1, workers + 1), timeout))
    if as_json:
        print(json.dumps(document(checks), indent=2))
    else:
        _show(checks)
    if worst(checks) is Verdict.WRONG:
        sys.stdout.flush()
        sys.exit(1)


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks as JSON; `verdict`, of the whole and of each check, is ok, not checked, warning or wrong."""
    from foqs.doctor.check import worst

    rows = [
        {
            "group": check.group.value,
            "name": check.name,
            "verdict": check.verdict.value,
            "found": check.found,
            "mend": check.mend or None,
        }
        for check in checks
    ]
    return {"verdict": worst(checks).value, "checks": rows}


def _show(checks: Sequence[Check]) -> None:
    """Print a table on a terminal, else a line for each check, for `grep`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from foqs.doctor.check import Group, Verdict
    from foqs.shardmgr.operate import name

    console = Console(markup=False, highlight=False, emoji=False)
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in reversed(Verdict)}
    summary = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    if not console.is_terminal:
        for check in checks:
            mend = f" -> {check.mend}" if check.mend else ""
            print(f"{check.verdict.value}: {check.group.value}: {name(check.name)}: {name(check.found)}{mend}")
        print(summary)
        return
    styles = {Verdict.OK: "green", Verdict.SKIPPED: "dim", Verdict.WARNING: "yellow", Verdict.WRONG: "bold red"}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=32)
    table.add_column(overflow="fold")
    for group in Group:
        rows = [check for check in checks if check.group is group]
        if rows:
            table.add_row(Text(group.value, "bold"))
        for check in rows:
            found = Text(name(check.found))
            if check.mend:
                found.append(f"\n-> {check.mend}", "italic")
            table.add_row(Text(check.verdict.value, styles[check.verdict]), name(check.name), found)
    console.print(table)
    console.print(summary)
