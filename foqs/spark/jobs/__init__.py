"""Batch jobs over queued items: a report, an export, a bulk enqueue, a move from topic to topic.

Each module is a command of `foqs spark`, and a file for spark-submit. It imports PySpark when it runs.
"""
