"""The process around the engine: event loop, clock, shard threads, cluster membership, reload."""
