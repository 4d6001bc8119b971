"""Figures for people: a table of medians with their spread."""

from __future__ import annotations

import platform
from statistics import median

from rich.console import Console
from rich.table import Table

from foqs.lab.bench.run import Figures


def show(figures: Figures, console: Console) -> None:
    """Prints every figure's median, minimum and maximum over the rounds."""
    table = Table(title=f"foqs bench on {figures.database} {figures.version}, Python {platform.python_version()}")
    table.add_column("figure")
    for column in ("median", "min", "max"):
        table.add_column(column, justify="right")
    for name, values in figures.values.items():
        table.add_row(name, *(_number(name, value) for value in (median(values), min(values), max(values))))
    console.print(table)


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
