"""Acceptance scenarios of fair sharing and throttles, measured on real hosts (`foqs-lab policies`)."""
