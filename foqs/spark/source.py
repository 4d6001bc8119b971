"""The format "foqs", as Spark knows it. What reading and writing need is imported when it is asked for."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class FoqsSource(DataSource):
    """Writes rows as items, reads a snapshot of what is queued, and consumes a topic as a stream: see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> Any:
        """Spark does not say whether it is asked for a table or a stream: the option `stateDir` makes it a stream."""
        if "statedir" in map(str.lower, self.options):
            from foqs.spark.consume import SCHEMA

            return SCHEMA
        from foqs.spark.snapshot import schema

        return schema(self.options)

    def reader(self, schema: Any) -> Any:
        """Raises Invalid."""
        from foqs.spark.snapshot import SnapshotReader

        return SnapshotReader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Raises Invalid."""
        from foqs.spark.write import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Raises Invalid. `overwrite` only says that the query is in complete mode."""
        from foqs.spark.write import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: Any) -> Any:
        """Raises Invalid."""
        from foqs.spark.consume import ConsumeReader

        return ConsumeReader(self.options)
