"""Spark jobs fill the queue, and read it: the format "foqs" of PySpark's Python data sources, and jobs over it."""
