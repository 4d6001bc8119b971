"""Makes Spark know the format "foqs" by itself: it imports every module whose name begins with `pyspark_` and takes the
class of this name."""

from foqs.spark.source import FoqsSource as DefaultSource

__all__ = ["DefaultSource"]
