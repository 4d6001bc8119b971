"""Ready windows over the backlog of each lane, and the merge of them over shards. Pure: no I/O, `now` passed in."""
