"""One shard's database: tables, the fence, transactions, scans. Does SQL and decides nothing."""
