# Written by hand, as is its twin.
"""The parts of the client that wait. script/twin.py writes their blocking twins."""
