"""`foqs spark`: batch jobs over what is queued. PySpark is imported when one runs."""

from __future__ import annotations

import typer

from foqs.cli.errors import told
from foqs.spark.jobs import enqueue, export, move, report

app = typer.Typer(help="Report on items, export, enqueue and move them, with Spark.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    for job in (report.report, export.export, enqueue.enqueue, move.move):
        app.command()(told(job))
    parent.add_typer(app, name="spark")
