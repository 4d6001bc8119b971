"""What a hook is called with, and what a call returns. Values that hosts and the process with the scripts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

from foqs.hooks.results import EnqueueResult, FailureResult

SCRIPT_BYTES = 65_536
BYTECODE = "\x1b"
"""First character of a compiled script, which no sandbox holds."""


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
    """Whether the script may return throttle keys."""

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
    """The entries of a namespace that `foqs.get` reads: all but `script.*`. Keep one object for each version: a child
    gets the entries when it is called with an object of another version."""

    ns: str
    version: int
    values: Mapping[str, str]


class HookKey(NamedTuple):
    """Names a hook of a topic, which has a breaker and a queue of its own."""

    ns: str
    topic: str
    hook: Hook


@dataclass(frozen=True, slots=True)
class HookCall:
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
    """The host could not call the script: queues are full, the call's time is over, or no process can be started."""

    @property
    def blames_script(self) -> bool:
        """Whether the failure counts for the breaker."""
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
