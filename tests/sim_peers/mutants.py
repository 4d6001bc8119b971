"""Rules of the hosts that `test_mutants` takes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(patch: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[patch.__name__] = patch
    return patch
