"""foqs: a priority queue service over many MySQL shards."""

from importlib.machinery import EXTENSION_SUFFIXES

__version__ = "0.1.0"


def build() -> str:
    """`compiled` when the hot modules are loaded from machine code (docs/deployment.md), else `pure Python`."""
    import foqs.item

    return "compiled" if foqs.item.__file__.endswith(tuple(EXTENSION_SUFFIXES)) else "pure Python"
