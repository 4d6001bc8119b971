"""What a child process must not share with its parent is made again after a fork."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Called in the child: no other thread exists, and inherited locks may stay locked for ever."""


_living: WeakSet[Forkable] = WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    _living.add(thing)


def _in_child() -> None:
    for thing in list(_living):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
