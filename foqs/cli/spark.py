"""`foqs spark`: batch jobs over queued items. A job imports PySpark when it runs."""

from __future__ import annotations

import typer

from foqs.cli.main import command, commands
from foqs.spark.jobs import enqueue, export, move, report

_ZOOKEEPER = "--zookeeper zk-1:2181"

app = typer.Typer()
jobs = commands(
    app,
    "spark",
    "Report on, export, enqueue and move many items with Spark.",
    f"foqs spark report --page report.html {_ZOOKEEPER}",
)
command(jobs, f"foqs spark report --page report.html {_ZOOKEEPER}")(report.report)
command(jobs, f"foqs spark export --out s3a://bucket/items {_ZOOKEEPER}")(export.export)
command(jobs, "foqs spark enqueue --input rows.json -n app -t emails --endpoints foqs:7707")(enqueue.enqueue)
command(
    jobs,
    f"""foqs spark move {_ZOOKEEPER} --endpoints foqs:7707 \\
    --from-namespace default --from-topic emails --to-namespace default \\
    --to-topic failed --where 'attempt > 3' --dry-run""",
)(move.move)
