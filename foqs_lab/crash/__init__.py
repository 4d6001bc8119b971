"""Load on hosts whose processes and databases fail, and the check of every reply.

`clients` load the hosts and log every reply, `kills` kills them, and `checker` reads the logs and reports each broken
promise.
"""
