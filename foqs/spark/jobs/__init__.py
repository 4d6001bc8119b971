"""Batch jobs over what is queued: a report, an export, a bulk enqueue, a move from topic to topic.

Each module is a command of `foqs spark`, and can be given to spark-submit as it is. PySpark is imported when one runs.
"""
