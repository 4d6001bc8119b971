"""ZooKeeper: facts in, facts out, and nothing else. The rules are in `foqs.shardmgr`."""
