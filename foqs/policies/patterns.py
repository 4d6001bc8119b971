"""Values of exact names and of all names with a prefix, as settings give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Patterns(Generic[T]):
    """A * at the end of a key is a pattern, a * elsewhere a character."""

    __slots__ = ("_exact", "_lengths", "_prefixes")

    def __init__(self, values: Mapping[str, T]) -> None:
        """`values` by name or `prefix*`."""
        self._exact = {key: value for key, value in values.items() if not key.endswith("*")}
        self._prefixes = {key[:-1]: value for key, value in values.items() if key.endswith("*")}
        self._lengths = sorted(set(map(len, self._prefixes)))

    def fitting(self, name: str) -> Iterator[tuple[str, T]]:
        """Yield the keys that fit a name with their values: the shortest prefix first, the exact name last."""
        for length in self._lengths:
            if length <= len(name) and (prefix := name[:length]) in self._prefixes:
                yield f"{prefix}*", self._prefixes[prefix]
        if name in self._exact:
            yield name, self._exact[name]

    def closest(self, name: str) -> T | None:
        """Return the last value of `fitting`, which is that of the exact name or the longest prefix; None: there is
        none. A topic has a weight to look up for each of its tenants."""
        if name in self._exact:
            return self._exact[name]
        for length in reversed(self._lengths):
            if (prefix := name[:length]) in self._prefixes:
                return self._prefixes[prefix]
        return None

    def __bool__(self) -> bool:
        return bool(self._exact or self._prefixes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patterns) and (self._exact, self._prefixes) == (other._exact, other._prefixes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Patterns({self._exact | {f'{prefix}*': value for prefix, value in self._prefixes.items()}})"
