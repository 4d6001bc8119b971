"""A running host: requests in, rounds to the shards' workers, replies out. `node` carries out what the rest decides."""
