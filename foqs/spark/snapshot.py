"""A snapshot of all queued items, as Spark reads it: planned on the driver, read from the databases by the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from foqs.spark import snapshot_columns as columns
from foqs.spark.columns import HEADERS, read_as
from foqs.spark.snapshot_options import SnapshotOptions
from foqs.spark.snapshot_read import read
from foqs.spark.snapshot_shards import Piece, pieces


@dataclass
class _Partition(InputPartition):
    value: Piece


def schema(options: Mapping[str, str]) -> str:
    """Return all columns, as DDL. Raises Invalid."""
    parsed = SnapshotOptions.parse(options)
    found = dict(columns.COLUMNS)
    if parsed.payloads:
        found |= columns.BODY_COLUMNS
    elif parsed.extra_columns == "headers":
        found[HEADERS] = columns.BODY_COLUMNS[HEADERS]
    return ", ".join(f"{name} {kind}{'' if name in columns.NULLABLE else ' NOT NULL'}" for name, kind in found.items())


class SnapshotReader(DataSourceReader):
    """Reader without pushed filters (`pushFilters`); the options replace them. Spark 4.3 uses the reader that accepted
    filters for the whole DataFrame, so its next query, with different filters, would get the rows of the first query
    only."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Plan the read. Raises Invalid for wrong options and columns."""
        self._options = SnapshotOptions.parse(options)
        self._reading = read_as(schema, columns.COLUMNS | columns.BODY_COLUMNS, self._options.extra_columns)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        kinds = {source: column.type for source, column in zip(self._reading.sources, self._schema, strict=True)}
        headers = pa.map_(pa.string(), pa.string())
        self._ours = pa.schema([(name, kinds.get(at, headers)) for at, name in enumerate(self._reading.names)])

    def partitions(self) -> list[InputPartition]:
        return [_Partition(piece) for piece in pieces(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition. The partition without a value, which Spark makes if there is none, has no rows."""
        if partition.value is None:
            return iter(())
        batches = read(partition.value, self._ours, self._options.wanted, self._options.page_rows)
        # Spark compares the names case-sensitively.
        return (
            pa.RecordBatch.from_arrays(self._reading.columns(batch.columns), schema=self._schema) for batch in batches
        )
