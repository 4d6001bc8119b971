"""Crash tests of whole hosts on real database servers.

`clients` load a host and log every reply; `faults` kill hosts and servers at seeded random moments;
`checker` reads the logs and says which promise was broken, if any; `run` is one crash test from start to end:

    python -m foqs.lab.crash.run mariadb --seed 1
"""
