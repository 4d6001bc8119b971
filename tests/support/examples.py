"""The number of examples of a property that needs another one than most properties."""

from hypothesis import settings


def examples(times: float) -> int:
    """Return `times` the number of the profile in use: 100, and 30 in script/check."""
    return round(times * settings().max_examples)
