"""Load on hosts whose processes and databases fail, and the check of every reply.

`rig` runs hosts on real database servers, `clients` load them and log every reply, and `checker` reads the logs and
reports each broken promise.
"""
