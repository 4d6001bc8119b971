"""What waits for a shard's next transaction, and how it becomes one. Pure."""
