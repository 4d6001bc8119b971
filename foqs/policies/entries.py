"""Entries of settings: the checks of names, the reading of values with every error, and the values of throttles, of
shares of tenants (`fair`) and of retries.

Names are the same in settings, in items and between hosts. A name is a text. The codec hands over a text that is not
UTF-8 as bytes, and JSON and the system's environment may have texts that UTF-8 cannot encode. Each check refuses both.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import ceil
from typing import Annotated, Any, Generic, Literal, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from foqs.bounds import (
    MOST_RATE,
    MOST_WEIGHT,
    NAME_BYTES,
    SCHEDULE_BYTES,
    THROTTLE_KEYS,
    THROTTLE_KEYS_BYTES,
    YEAR_MS,
    Quota,
)
from foqs.checks import has_control, is_text
from foqs.errors import Invalid

TOPIC, THROTTLE, WEIGHT, SCRIPT, SCHEDULE, PUSH = "topic.", "throttle.", "weight.", "script.", "schedule.", "push."
"""Prefixes of settings keys, by the kind of the value."""
MOST_PARSED = 10_000
"""Texts whose entries are remembered: each version of the settings has most texts of the version before."""
TIMEOUT_MS = 60_000
_VALUE_CHARACTERS = 60
_ALIKE = 0.8
"""How alike two words are, from 0 to 1, if one is taken for the other misspelt."""
_HEAD = re.compile(r"(\w+)[.:/]")
_MOST_SLOTS = 1_000_000


def name_error(name: object) -> str | None:
    """Return the error of a name that no topic or key may have."""
    if not is_text(name):
        return "the name is not UTF-8"
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        return f"a name has 1 to {NAME_BYTES} bytes, not {size}"
    if not name.isprintable() and has_control(name):
        return "a name has no control characters"
    return None


def all_good_names(names: Sequence[str], most_bytes: int) -> bool:
    """Return True if `name_error`, with that bound, finds no error in any of many texts, at less cost. "" counts as
    good here; False may be wrong."""
    joined = "".join(names)
    return joined.isascii() and joined.isprintable() and len(max(names, key=len)) <= most_bytes


def pattern_error(pattern: str) -> str | None:
    """Return the error of a text that is neither a name nor a `prefix*`."""
    return None if pattern == "*" else name_error(pattern.removesuffix("*"))


def throttle_key_error(key: object) -> str | None:
    """Return the error of a value that is no throttle key. A * at the end is for patterns of the settings."""
    return "a throttle key does not end in *" if isinstance(key, str) and key.endswith("*") else name_error(key)


def script_name_error(name: str) -> str | None:
    """Return the error of a text that names no script."""
    return "the name of a script does not end in *" if name.endswith("*") else name_error(name)


def schedule_name_error(name: str) -> str | None:
    """Return the error of a text that names no schedule. The keys of its items hold the name."""
    if len(name.encode(errors="replace")) > SCHEDULE_BYTES:
        return f"the name of a schedule has at most {SCHEDULE_BYTES} bytes"
    return "the name of a schedule does not end in *" if name.endswith("*") else name_error(name)


def throttles_error(
    keys: Collection[str], most: int = THROTTLE_KEYS, most_bytes: int = THROTTLE_KEYS_BYTES
) -> str | None:
    """Return the error of keys, each valid, that are no throttle set. `most_bytes`: with one byte between two keys."""
    if len(keys) > most:
        return f"there are {len(keys)} keys, more than {most}"
    if len(set(keys)) < len(keys):
        twice, _ = Counter(keys).most_common(1)[0]
        return f"the key {twice!r} is listed more than once"
    size = len("\0".join(keys).encode())
    if size > most_bytes:
        return f"the keys have {size} bytes with one between two keys, more than {most_bytes}"
    return None


_KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a text",
    "string_unicode": "a text that is UTF-8",
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
}
"""What a value must be, by pydantic's type of the error; a value in braces is the error's own."""


class Entry(BaseModel):
    """A value of the settings. Its fields, with their ranges, defaults and texts, describe its options."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


E = TypeVar("E", bound=Entry)
T = TypeVar("T")


def checked(error: Callable[[T], str | None]) -> AfterValidator:
    """Return the check of a field's value for which `error` returns no error."""

    def check(value: T) -> T:
        found = error(value)
        if found is not None:
            raise ValueError(found)
        return value

    return AfterValidator(check)


def read(model: type[E], text: str, what: str, later: Set[str] = frozenset()) -> E:
    """Return the entry of a text. `what`: its name in errors. `later`: fields that this version does not have.

    Raises Invalid with every error of the entry, one a line."""
    try:
        value = json.loads(text, object_pairs_hook=_fields)
    except RecursionError:
        raise Invalid("not JSON: too deep") from None
    except UnicodeEncodeError:
        raise Invalid("the name of a field is not UTF-8") from None
    except ValueError as error:
        raise Invalid(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} is a JSON object, not {shown(value)}")
    errors = [f"{name}: this version of foqs does not have it" for name in sorted(later & value.keys())]
    try:
        entry = model.model_validate({name: value[name] for name in value if name not in later})
    except ValidationError as found:
        errors += [_line(model, detail) for detail in found.errors(include_url=False)]
    if errors:
        raise Invalid("\n".join(errors))
    return entry


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    "".join(names).encode()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{shown(twice)} is listed more than once in an object")
    return dict(pairs)


def _line(model: type[BaseModel], detail: Any) -> str:
    place, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        *inside, name = place
        meant = closest(name, _fields_at(model, inside))
        hint = "" if meant is None else f": did you mean {shown(meant)}?"
        return ": ".join([*map(str, inside), f"there is no field {shown(name)}{hint}"])
    if kind == "value_error" and place[-1:] == ("[key]",):  # pydantic's name for the key of a pair
        place = place[:-1]
    where = ".".join([part if isinstance(part, str) and part.isidentifier() else shown(part) for part in place])
    if kind == "missing":
        return f"{where}: it is missing"
    if kind == "value_error":
        return f"{where}: {detail['ctx']['error']}" if place else str(detail["ctx"]["error"])
    return f"{where}: it must be {_KINDS[kind].format_map(detail.get('ctx', {}))}, not {shown(detail['input'])}"


def _fields_at(model: type[BaseModel], inside: Sequence[object]) -> Collection[str]:
    """Return the fields of the object at a place in an entry."""
    for name in inside:
        if name in model.model_fields:
            kinds = [model.model_fields[str(name)].annotation]
            while kinds and not (isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel)):
                kinds += get_args(kinds.pop(0))
            if not kinds:
                return ()
            model = cast(type[BaseModel], kinds[0])
    return model.model_fields


def closest(name: str, among: Collection[str]) -> str | None:
    """Return the name that is most likely meant by a misspelt one, or None."""
    return next(iter(get_close_matches(name.lower(), among, 1, _ALIKE)), None)


def misspelt(key: str) -> str | None:
    """Return a warning about a key of the settings that looks like one that foqs reads, and is not, or about a * that
    is no pattern; None for any other key."""
    known = next((prefix for prefix in (TOPIC, THROTTLE, WEIGHT) if key.startswith(prefix)), None)
    if known is not None:
        name = key.removeprefix(known)
        if "*" not in name[:-1]:
            return None
        fits = f"the names that begin with {name[:-1]}" if name.endswith("*") else f"the name {name} alone"
        return f"{key}: only one * at the end is a pattern: this is for {fits}"
    head = _HEAD.match(key)
    if head is None or key.startswith((SCRIPT, SCHEDULE, PUSH)):
        return None
    meant = closest(f"{head[1]}.", (TOPIC, THROTTLE, WEIGHT, SCRIPT, SCHEDULE, PUSH))
    return None if meant is None else f"{key}: foqs does not read this key: did you mean {meant}{key[head.end() :]}?"


def shown(value: Any) -> str:
    """Return a value as an error names it."""
    text = json.dumps(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."


class Patterns(Generic[T]):
    """Values of exact names, and of all names with a prefix. A * at the end of a key is a pattern, a * elsewhere a
    character."""

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
        """Return the last value of `fitting`, that of the exact name or the longest prefix, or None. It is a way of its
        own, because a topic looks up a weight for each of its tenants."""
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


@dataclass(frozen=True, slots=True)
class Throttle:
    """The limits on items with a throttle key: at most `burst` + `per_second` * t deliveries in any t seconds, and at
    most `concurrency` leases at a time. One of the two may be None, without a limit. `per_second` may be a fraction.

    A lease that is older than `timeout_ms` is counted as overage, and a shard without an owner counts for no longer; 0:
    never. `shadow`: count the deliveries over the limit without blocking them. `setting`: its settings key, which may
    serve many throttle keys, each with tokens and slots of its own."""

    per_second: float | None
    burst: int
    shadow: bool
    setting: str
    concurrency: int | None = None
    timeout_ms: int = 0

    @property
    def quota(self) -> Quota | None:
        """The bound for the coordinator of a key; None if there is no rate."""
        return None if self.per_second is None else Quota(self.per_second, self.burst, None)

    def options(self) -> dict[str, Any]:
        """Return the options of `ThrottleEntry` that have an effect, by name."""
        named = {name: getattr(self, name) for name in ThrottleEntry.model_fields}
        return {name: value for name, value in named.items() if named[_NEEDS.get(name, name)] is not None}


_NEEDS = {"burst": "per_second", "timeout_ms": "concurrency"}
"""Options of a throttle that have an effect with another one only."""


class ThrottleEntry(Entry):
    """The value of a settings key `throttle.<key or prefix*>`: a rate, a number of leases at a time, or both. The texts
    are the help of `foqs throttle set`."""

    per_second: Annotated[float, Field(ge=0.001, le=MOST_RATE, allow_inf_nan=False)] | None = None
    """Deliveries per second and key (0.1: six a minute)."""
    burst: Annotated[int, Field(ge=1, le=MOST_RATE)] | None = None
    """Deliveries that are possible at once after a pause. Default: per_second, rounded up."""
    concurrency: Annotated[int, Field(ge=1, le=_MOST_SLOTS)] | None = None
    """At most this many items with the key are leased at a time."""
    timeout_ms: Annotated[int, Field(ge=0, le=YEAR_MS)] | None = Field(
        default=None,
        description="After this time (ms) a lease counts as overage, and a shard without an owner frees its slots; "
        f"0: never. Default: {TIMEOUT_MS}.",
    )
    shadow: bool = False
    """The throttle counts the deliveries over its limit, and holds none back."""

    @model_validator(mode="after")
    def _fits(self) -> ThrottleEntry:
        if self.per_second is None and self.concurrency is None:
            raise ValueError("per_second or concurrency is needed")
        for name, other in _NEEDS.items():
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ValueError(f"{name} needs {other}")
        return self

    def throttle(self, setting: str) -> Throttle:
        """`setting`: the settings key that has this value."""
        in_effect = dict(self) | {"burst": self.burst or ceil(self.per_second or 0)}
        if self.timeout_ms is None:
            in_effect["timeout_ms"] = 0 if self.concurrency is None else TIMEOUT_MS
        return Throttle(**in_effect, setting=setting)


@lru_cache(maxsize=MOST_PARSED)
def parse_throttle(text: str) -> ThrottleEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(ThrottleEntry, text, "a throttle")


Unit = Literal["items", "bytes", "busy"]
Scope = Literal["tenant", "topic"]
RetryKind = Literal["constant", "linear", "exponential"]
Duration = Annotated[int, Field(ge=0, le=YEAR_MS)]


class FairEntry(Entry):
    """How the tenants of a topic, which are its fairness keys, share its deliveries."""

    unit: Unit = "items"
    """What a delivery costs its tenant: 1 (`items`), its bytes (`bytes`), or the time of its lease (`busy`)."""
    scope: Scope = "tenant"
    """Where priorities count: inside a `tenant`, or over the whole `topic`, which then serves a tenant with less urgent
    items last."""
    weights: dict[Annotated[str, checked(pattern_error)], Annotated[int, Field(ge=1, le=MOST_WEIGHT)]] = Field(
        default_factory=dict
    )
    """Weights of fairness keys or `prefix*` in this topic. The exact key wins, then the longest prefix. They win over
    `weight.<key>` of the settings, and those over the weight that comes with the items."""
    balance: bool = True
    """The hosts of a cluster even out what each tenant gets on all of them."""

    @cached_property
    def patterns(self) -> Patterns[int]:
        """The weights by name or prefix."""
        return Patterns(self.weights)


def parse_weight(text: str) -> int:
    """Return the value of a settings key `weight.<fairness key or prefix*>`. Raises Invalid."""
    weight = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= weight <= MOST_WEIGHT:
        raise Invalid(f"a weight is a whole number from 1 to {MOST_WEIGHT}, not {shown(text)}")
    return weight


class RetryEntry(Entry):
    """The delays of a failed item: before attempt n + 1, and at most `longest_ms`."""

    kind: RetryKind
    """`constant`: always `first_ms`. `linear`: `first_ms + (n - 1) * step_ms`. `exponential`:
    `first_ms * factor ** (n - 1)`."""
    first_ms: Duration = 1_000
    """The delay after the first attempt."""
    step_ms: Duration = 0
    """For `linear`: what each further attempt adds."""
    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    """For `exponential`: what each further attempt multiplies by."""
    longest_ms: Duration = 15 * 60_000
    """No delay is longer."""
    jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """The part of the delay that is random. With 0.5 the delay is between half of it and all of it."""

    @model_validator(mode="after")
    def _fits(self) -> RetryEntry:
        if self.first_ms > self.longest_ms:
            given = "" if "longest_ms" in self.model_fields_set else ", its default"
            raise ValueError(f"first_ms is {self.first_ms}, more than longest_ms: {self.longest_ms}{given}")
        return self

    def delay_ms(self, attempt: int, item_id: int) -> int:
        """Return the delay after the failure of `attempt` (1 or more). The same attempt of an item always gets the same
        delay, so a repeated nack does not move it."""
        full_ms = min(self._full_ms(attempt), self.longest_ms)
        return round(full_ms * (1 - self.jitter * _share(item_id, attempt)))

    def _full_ms(self, attempt: int) -> float:
        if self.kind == "constant":
            return self.first_ms
        if self.kind == "linear":
            return self.first_ms + (attempt - 1) * self.step_ms
        try:
            return self.first_ms * self.factor ** (attempt - 1)
        except OverflowError:
            return self.longest_ms


def _share(item_id: int, attempt: int) -> float:
    """Return a number from 0 (included) to 1 (excluded), spread evenly over items and attempts."""
    digest = blake2b(b"%d %d" % (item_id, attempt), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
