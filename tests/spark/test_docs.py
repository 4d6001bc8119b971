"""The code of docs/do/spark.md, and the tables of docs/reference/spark.md."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from foqs.spark.options import WRITE_COLUMNS, ConsumeOptions, Options, WriteOptions
from foqs.spark.snapshot_shards import SnapshotOptions
from tests.api.hosts import dev
from tests.support.pages import DOCS, agrees, blocks

REFERENCE = (DOCS / "reference/spark.md").read_text()


@pytest.mark.spark
@pytest.mark.process
def test_the_recipe(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code as printed, but for the address; in this process, as a second Spark would cost half a minute."""
    monkeypatch.chdir(tmp_path)
    code = [block for block in blocks((DOCS / "do/spark.md").read_text()) if block.language in ("python", "text")][1:]
    known: dict[str, Any] = {}
    shown = ""
    with dev(tmp_path, "--data-dir", "foqs-data", "--shards", "2", FOQS_ADMIN__PORT="0") as host:
        for block in code:
            if block.language == "text":
                assert agrees(block.text, shown)
                continue
            with redirect_stdout(StringIO()) as printed:
                text = block.text.replace("127.0.0.1:7707", "{}:{}".format(*host.address))
                exec(compile(text, f"docs/do/spark.md:{block.line}", "exec"), known)
            shown = printed.getvalue()
    assert len(code) == 8


@pytest.mark.parametrize(
    ("title", "options"),
    [("Writing", WriteOptions), ("Reading a snapshot", SnapshotOptions), ("Consuming a topic", ConsumeOptions)],
)
def test_every_option_is_there(title: str, options: type[Options]) -> None:
    (part,) = re.findall(rf"## {title}\n(.*?)(?=\n## |\Z)", REFERENCE, re.DOTALL)
    table = part[part.index("| option |") :]
    assert set(named(table)) == set(options.names())


def test_every_column_of_a_written_frame_is_there() -> None:
    part = REFERENCE[REFERENCE.index("## Writing") : REFERENCE.index("| option |")]
    assert set(named(part[part.index("| column |") :])) == set(WRITE_COLUMNS)


def named(table: str) -> list[str]:
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
