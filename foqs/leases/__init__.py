"""Time: checkpoints of the scans that find due rows, and deadlines kept in memory. Pure."""
