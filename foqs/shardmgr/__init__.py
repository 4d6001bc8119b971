"""Which shards a host serves and in what state each is. Pure decisions; opening and closing is done by the host."""
