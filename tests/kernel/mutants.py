"""Mutants: production code with one rule taken out, for the length of a test. A simulation must fail with each.

A mutant is a name, an attribute of the product, its replacement, and a run that finds it:

    put("nothing_is_announced_again", Membership, "expired", constant(None), seed=4)

    @around(Batch, "only", kind="dead", seed=10)
    def a_part_of_a_transaction_forgets_failures(only, batch, ids, *, lanes):
        made = only(batch, ids, lanes=lanes)
        made.failure_new = []
        return made

The function below `around` runs in place of the product's, which is its first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from tests.kernel import seeds

Body = Callable[..., Any]
Put = tuple[Any, str, Any]
"""A target, the name of its attribute, and the replacement."""


def constant(value: Any) -> Body:
    """Return a function whose result is always `value`."""
    return lambda *args, **more: value


class _Around(NamedTuple):
    body: Body

    def of(self, original: Any) -> Body:
        return lambda *args, **more: self.body(original, *args, **more)


class Mutant(NamedTuple):
    """`kind` and `seed` of a run that finds it. After a change of the product it may be another seed."""

    puts: tuple[Put, ...]
    kind: str
    seed: int


class Mutants(dict[str, Mutant]):
    """The mutants of a cast by name."""

    def put(
        self, name: str, target: Any, attribute: str, new: Any, kind: str = "", seed: int = 0, also: Sequence[Put] = ()
    ) -> None:
        """Add a mutant that replaces an attribute. `also` has more targets with their attributes and replacements."""
        assert name not in self, f"two mutants have the name {name}"
        self[name] = Mutant(((target, attribute, new), *also), kind, seed)

    def around(
        self, target: Any, attribute: str, kind: str = "", seed: int = 0, also: Sequence[Put] = (), name: str = ""
    ) -> Callable[[Body], Body]:
        """Add a mutant with the name of the decorated function."""

        def add(body: Body) -> Body:
            self.put(name or body.__name__, target, attribute, _Around(body), kind, seed, also)
            return body

        return add

    def find(self, name: str, simulate: Callable[[int, str], object], most: int) -> int | None:
        """Return a seed that fails with the mutant: the known seed, or the first below `most`."""
        mutant = self[name]
        with pytest.MonkeyPatch.context() as patch:
            for target, attribute, new in mutant.puts:
                original = getattr(target, attribute)
                patch.setattr(target, attribute, new.of(original) if isinstance(new, _Around) else new)
            return seeds.finds(lambda seed: simulate(seed, mutant.kind), most, mutant.seed)

    def check(self, name: str, simulate: Callable[[int, str], object], most: int) -> None:
        assert self.find(name, simulate, most) is not None, f"no seed below {most} fails with {name}"
