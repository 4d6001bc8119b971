"""ZooKeeper: reads and writes facts. The rules are in `foqs.shardmgr`."""
