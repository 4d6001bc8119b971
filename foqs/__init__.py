"""foqs: a priority queue service over many MySQL shards."""

__version__ = "0.1.0"
