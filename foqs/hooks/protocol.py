"""The calls of hooks: the fields that a script gets, the result that it may return, and why a call fails.

A wrong result is an error of the script, with the field and the value. Values, pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from itertools import repeat
from typing import Any, NamedTuple

from foqs.bounds import MOST_WEIGHT, Limits
from foqs.checks import I32_MAX
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.policies.entries import name_error, throttle_key_error, throttles_error
from foqs.rows import FailureCause

SCRIPT_BYTES = 65_536
BYTECODE = "\x1b"
"""First character of a compiled script, which no sandbox holds."""
_LEAST_PRIORITY, _MOST_PRIORITY = -I32_MAX - 1, I32_MAX
_VALUE_CHARACTERS = 60


class Hook(StrEnum):
    """The event that calls a script: the name of the function that the script defines for it."""

    ON_ENQUEUE = "on_enqueue"
    ON_FAILURE = "on_failure"


@dataclass(frozen=True, slots=True)
class Script:
    """The source of a settings entry `script.<name>`. `digest` is the source's: another version is another script."""

    ns: str
    name: str
    source: str
    digest: bytes = field(init=False, repr=False)
    sets_throttle_keys: bool = field(init=False, repr=False)
    """True: the script may return throttle keys."""

    def __post_init__(self) -> None:
        digest = sha256(self.source.encode("utf-8", "surrogatepass")).digest()
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "sets_throttle_keys", "throttle_keys" in self.source)


def source_error(source: str) -> str | None:
    """Return the error of a text that no script may be. Its syntax is not looked at."""
    try:
        size_bytes = len(source.encode())
    except UnicodeEncodeError:
        return "a script is UTF-8"
    if size_bytes > SCRIPT_BYTES:
        return f"a script has at most {SCRIPT_BYTES} bytes, not {size_bytes}"
    if source.startswith(BYTECODE):
        return "a script is source text, not bytecode"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The entries of a namespace that `foqs.get` reads: all but `script.*`. Keep one object for each version of the
    settings: a process gets the entries when it is called with another object."""

    ns: str
    values: Mapping[str, str]


class HookKey(NamedTuple):
    """Names a hook of a topic, which has a breaker and a queue of its own."""

    ns: str
    topic: str
    hook: Hook


class HookCall(NamedTuple):
    """A call of a script's function with `item`: texts, whole numbers, fractions, true or false, or a table of texts
    by text (`headers`). Fields with None are left out.

    A `guarded` call does not run while the breaker of `key` is open, and its outcome counts there. TryHook's calls are
    not guarded. A call that `compiles` calls no function: the script is loaded, and has to define one of the hooks."""

    script: Script
    key: HookKey
    item: Mapping[str, Any]
    entries: Entries
    guarded: bool = True
    compiles: bool = False


class Action(StrEnum):
    """The decision about an item that failed."""

    RETRY = "retry"
    DEAD = "dead"
    DROP = "drop"


class EnqueueResult(NamedTuple):
    """The fields that `on_enqueue` sets; None where it sets none. `refuse`: the item is INVALID with this text, and the
    result has no other field. `throttle_keys` are sorted; an empty set means none."""

    refuse: str | None = None
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: tuple[str, ...] | None = None
    priority: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None


class FailureResult(NamedTuple):
    """What `on_failure` decides. `action` None: as the policy says. `delay_ms` None: the policy's delay."""

    action: Action | None = None
    delay_ms: int | None = None


class Kind(StrEnum):
    """Why a call failed."""

    ERROR = "error"
    """The script has no such function, does not compile, or raised an error."""
    TIMEOUT = "timeout"
    """The script used up its time."""
    MEMORY = "memory"
    """The script used up its memory."""
    KILLED = "killed"
    """The host ended the process, because the call returned neither in time nor at its time-out; or the process ended
    in the call."""
    INVALID = "invalid"
    """The script returned a result that it may not return."""
    OPEN = "open"
    """The breaker is open after failures: the script was not called."""
    UNAVAILABLE = "unavailable"
    """The host could not call the script: queues are full, the call's time has passed, or no process can be started."""

    @property
    def blames_script(self) -> bool:
        """Return True if the failure counts for the breaker."""
        return self not in (Kind.OPEN, Kind.UNAVAILABLE)


class Answered(NamedTuple):
    """`result` is checked. `memory_bytes`: what the script's data takes after the call, beyond an empty script."""

    result: EnqueueResult | FailureResult
    elapsed_us: int = 0
    memory_bytes: int = 0


class Failed(NamedTuple):
    """`text` is for the owner of the script. `retry_after_ms` is given where the breaker is open."""

    kind: Kind
    text: str
    elapsed_us: int = 0
    memory_bytes: int = 0
    retry_after_ms: int | None = None


Outcome = Answered | Failed


class FailedAttempt(NamedTuple):
    """An attempt that ended without an ack, as a script reads it. `headers` is a JSON object in UTF-8. `within_ms`: the
    script has this much time; None: the time of a request."""

    topic: TopicKey
    headers: bytes | None
    payload_bytes: int
    priority: int
    attempt: int
    cause: FailureCause
    reason: str
    within_ms: int | None


Decided = Callable[[FailureResult | FoqsError | None, int], None]
"""Called once with (outcome, now_ms). A result is what the script decided, None leaves the item to its policy, and the
error refuses the request."""
AskScript = Callable[[FailedAttempt, Decided], None]
"""Asks the script of a topic about a failed attempt."""


# ------------------------------------------------------------------------------------- checks of results


class InvalidResult(Exception):
    """A script returned something that it may not return."""


def enqueue_result(fields: Mapping[str, Any], limits: Limits, *, may_throttle: bool) -> EnqueueResult:
    """Return what `on_enqueue` returned, checked. `may_throttle`: the source has the text `throttle_keys`.

    Raises InvalidResult."""
    checked: dict[str, Any] = {}
    for name, given in fields.items():
        check = _CHECKS.get(name)
        if check is None:
            raise _unknown(name, EnqueueResult)
        checked[name] = check(given, limits)
    if "refuse" in checked and len(checked) > 1:
        raise InvalidResult("refuse is set together with other fields: return one or the other")
    if "throttle_keys" in checked and not may_throttle:
        raise InvalidResult(
            "throttle_keys: the source of the script does not have this name; write it out: then foqs knows that the "
            "script sets throttle keys"
        )
    return EnqueueResult(**checked)


def enqueue_results(
    names: Sequence[str], columns: Sequence[Sequence[Any]], count: int, limits: Limits, *, may_throttle: bool
) -> list[EnqueueResult] | None:
    """Return what `count` calls of `on_enqueue` returned, checked: each has these fields. None if one of the results
    may be wrong. Each value of a field is checked once."""
    checked: dict[str, Iterable[Any]] = {name: repeat(None, count) for name in EnqueueResult._fields}
    for name, column in zip(names, columns, strict=False):
        check = _CHECKS.get(name)
        if check is None or name == "refuse" or (name == "throttle_keys" and not may_throttle):
            return None
        try:
            if name == "throttle_keys":
                checked[name] = [check(given, limits) for given in column]
            elif len({*map(type, column)}) == 1:  # 1, 1.0 and true would be one value
                known = {given: check(given, limits) for given in {*column}}
                checked[name] = [known[given] for given in column]
            else:
                return None
        except (InvalidResult, UnicodeEncodeError, TypeError):
            return None
    return list(map(EnqueueResult._make, zip(*checked.values(), strict=True)))


def failure_result(fields: Mapping[str, Any], limits: Limits) -> FailureResult:
    """Return what `on_failure` returned, checked. Raises InvalidResult."""
    action, delay_ms = None, None
    for name, given in fields.items():
        if name == "action":
            action = _action(given)
        elif name == "delay_ms":
            delay_ms = _delay_ms(given, limits)
        else:
            raise _unknown(name, FailureResult)
    if delay_ms is not None and action in (Action.DEAD, Action.DROP):
        raise InvalidResult(
            f"delay_ms is set together with action {action}: only an item that is tried again has a delay"
        )
    return FailureResult(action, delay_ms)


def _unknown(name: str, kind: type[EnqueueResult] | type[FailureResult]) -> InvalidResult:
    return InvalidResult(f"there is no field {_shown(name)}: a result has {', '.join(kind._fields)}")


def _action(given: object) -> Action:
    try:
        return Action(str(given))
    except ValueError:
        raise InvalidResult(f"action is {_shown(given)}, not retry, dead or drop") from None


def _refusal(given: object, limits: Limits) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidResult(f"refuse is {_shown(given)}, not a text that says why")
    if len(given.encode()) > limits.reason_bytes:
        raise InvalidResult(f"refuse has {len(given.encode())} bytes, more than {limits.reason_bytes}")
    return given


def _fairness_key(given: object, _: Limits) -> str:
    """The empty text is the tenant of items without a key."""
    if not isinstance(given, str):
        raise InvalidResult(f"fairness_key is {_shown(given)}, not a text")
    if given and (error := name_error(given)):
        raise InvalidResult(f"fairness_key {_shown(given)}: {error}")
    return given


def _throttle_keys(given: object, limits: Limits) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise InvalidResult(f"throttle_keys is {_shown(given)}, not a list of texts")
    for key in given:
        if key.__class__ is not str:
            raise InvalidResult(f"throttle_keys holds {_shown(key)}, not a text")
        if error := throttle_key_error(key):
            raise InvalidResult(f"throttle_keys: {_shown(key)}: {error}")
    if error := throttles_error(given, limits.throttle_keys, limits.throttle_keys_bytes):
        raise InvalidResult(f"throttle_keys: {error}")
    return tuple(sorted(given))


def _whole(name: str, given: object, low: int, high: int) -> int:
    if given.__class__ is int or (isinstance(given, float) and given.is_integer()):  # in Lua 8 / 2 is 4.0
        assert isinstance(given, int | float)
        if low <= given <= high:
            return int(given)
        raise InvalidResult(f"{name} is {_shown(given)}, not in {low}..{high}")
    raise InvalidResult(f"{name} is {_shown(given)}, not a whole number")


def _delay_ms(given: object, limits: Limits) -> int:
    return _whole("delay_ms", given, 0, limits.delay_max_ms)


_CHECKS: Mapping[str, Callable[[object, Limits], object]] = {
    "refuse": _refusal,
    "fairness_key": _fairness_key,
    "weight": lambda given, _: _whole("weight", given, 1, MOST_WEIGHT),
    "throttle_keys": _throttle_keys,
    "priority": lambda given, _: _whole("priority", given, _LEAST_PRIORITY, _MOST_PRIORITY),
    "delay_ms": _delay_ms,
    "ttl_ms": lambda given, limits: _whole("ttl_ms", given, 1, limits.ttl_max_ms),
}


def _shown(value: object) -> str:
    """Return a value as an error names it."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, list):
        text = "a list"
    else:
        text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."
