"""One host's decisions, pure: requests in, transactions out, replies out."""
