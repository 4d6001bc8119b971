"""foqs: a priority queue service over many MySQL shards.

The names of applications are here: `App` and what its tasks use (`foqs.tasks`), loaded when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fast_depends import Depends as Depends

    from foqs.client import Reject, Retry
    from foqs.tasks import (
        App,
        BatchEnd,
        Call,
        Chain,
        Codec,
        EncryptedCodec,
        Handle,
        ItemBatch,
        Job,
        JsonCodec,
        Middleware,
        MsgpackCodec,
        OffloadCodec,
        ResultLost,
        TaskFailed,
        wait,
    )

__all__ = [
    "App",
    "BatchEnd",
    "Call",
    "Chain",
    "Codec",
    "EncryptedCodec",
    "Handle",
    "ItemBatch",
    "Job",
    "JsonCodec",
    "Middleware",
    "MsgpackCodec",
    "OffloadCodec",
    "Reject",
    "ResultLost",
    "Retry",
    "TaskFailed",
    "build",
    "wait",
]

__version__ = "0.1.0"


def build() -> str:
    """`compiled` when the hot modules are loaded from machine code (docs/run/deployment.md), else `pure Python`."""
    from importlib.machinery import EXTENSION_SUFFIXES

    import foqs.item

    return "compiled" if foqs.item.__file__.endswith(tuple(EXTENSION_SUFFIXES)) else "pure Python"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "Depends"})


def __getattr__(name: str) -> Any:
    if name == "Depends":  # which needs an extra, so `import *` leaves it out
        return _depends()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("foqs.client" if name in ("Reject", "Retry") else "foqs.tasks"), name)


def _depends() -> Any:
    try:
        from fast_depends import Depends
    except ImportError as error:
        from foqs.extras import missing

        raise ImportError(missing("fast-depends, which Depends needs,", "tasks")) from error
    return Depends
