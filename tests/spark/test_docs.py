"""The examples of docs/do/spark.md, run one after another without changes."""

import re
from pathlib import Path
from typing import Any

import pytest

from foqs.spark.options import WRITE_COLUMNS, ConsumeOptions, Options, WriteOptions
from foqs.spark.snapshot_shards import SnapshotOptions
from foqs_lab.cluster import LocalCluster

PAGE = (Path(__file__).parents[2] / "docs/do/spark.md").read_text()


@pytest.mark.spark
def test_the_examples(spark: Any, cluster: LocalCluster, endpoints: str, tmp_path: Path) -> None:
    urls = " ".join(shard.url for shard in cluster.shards)
    known = {"spark": spark, "endpoints": endpoints, "shard_urls": urls, "folder": str(tmp_path)}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 7
    for example in examples:
        exec(compile(example, "docs/do/spark.md", "exec"), known)


@pytest.mark.parametrize(
    ("title", "options"),
    [("Writing", WriteOptions), ("Reading a snapshot", SnapshotOptions), ("Consuming a topic", ConsumeOptions)],
)
def test_every_option_is_there(title: str, options: type[Options]) -> None:
    (part,) = re.findall(rf"## {title}\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL)
    table = part[part.index("| option |") :]
    assert set(named(table)) == set(options.names())


def test_every_column_of_a_written_frame_is_there() -> None:
    part = PAGE[PAGE.index("## Writing") : PAGE.index("| option |")]
    assert set(named(part[part.index("| column |") :])) == set(WRITE_COLUMNS)


def named(table: str) -> list[str]:
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
