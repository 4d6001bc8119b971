"""Enqueued items and changes that wait for a shard's next transaction, and the batch they become. Pure."""
