"""Measurements: foqs, the raw bound of its database, and what users would otherwise pick, in turn in one run."""
