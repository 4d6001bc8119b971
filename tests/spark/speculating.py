"""A program for `test_speculation`: writes a frame whose first task hangs in the middle until its second attempt runs.

Arguments: the master's URL, endpoints, namespace, rows, a folder.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

PATIENCE_S = 300.0


def rows(folder: str, numbers: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield rows. The first attempt of the first partition stops half-way until the second attempt has come equally
    far."""
    context = TaskContext.get()
    assert context is not None
    all_of_them = list(numbers)
    for at, number in enumerate(all_of_them):
        if at == len(all_of_them) // 2:
            Path(folder, f"tried-{context.partitionId()}-{context.attemptNumber()}").touch()
            deadline = time.monotonic() + PATIENCE_S
            while context.partitionId() == 0 and len(list(Path(folder).glob("tried-0-*"))) < 2:
                assert time.monotonic() < deadline, "no second try"
                time.sleep(0.05)
        yield "t", b"%d" % number


def main() -> None:
    master, endpoints, namespace, count, folder = sys.argv[1:]
    speculation = {"interval": "100ms", "multiplier": "1.01", "quantile": "0.1", "minTaskRuntime": "100ms"}
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "512m").config("spark.executor.memory", "450m")
    builder = builder.config("spark.speculation", "true").config("spark.task.maxFailures", "4")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    for name, value in speculation.items():
        builder = builder.config(f"spark.speculation.{name}", value)
    spark = builder.getOrCreate()
    try:
        numbers = spark.sparkContext.range(int(count), numSlices=4)
        made = numbers.mapPartitions(lambda part: rows(folder, part))
        frame = spark.createDataFrame(made, "topic string, payload binary")
        options = {"endpoints": endpoints, "namespace": namespace, "metricsPath": str(Path(folder, "metrics.json"))}
        frame.write.format("foqs").options(**options).mode("append").save()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
