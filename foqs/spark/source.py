"""The format "foqs", as Spark sees it. The module imports the code for reading and writing on first use."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from foqs.spark.options import WriteOptions, of_user, write_schema


class FoqsSource(DataSource):
    """Writes rows as items, reads a snapshot of all queued items, and consumes a topic as a stream: see
    docs/reference/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> Any:
        """Return the columns of a stream (with the option `stateDir`), of a table for writes (`endpoints`), else of a
        snapshot: Spark does not say which it needs. Raises Invalid."""
        given = of_user(self.options)
        names = {name.lower() for name in given}
        if "statedir" in names:
            from foqs.spark.consume import SCHEMA

            return SCHEMA
        if "endpoints" in names:
            return write_schema(with_topic=WriteOptions.parse(given).topic is None)
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
        """Return the stream writer. Raises Invalid. `overwrite` only means that the query is in complete mode."""
        from foqs.spark.write import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: Any) -> Any:
        """Raises Invalid."""
        from foqs.spark.consume import ConsumeReader

        return ConsumeReader(self.options, schema)
