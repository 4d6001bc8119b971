"""What a newer configuration changes of the one that runs: its live keys, if the rest as it was allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from foqs.config import Config, NotValid, error_line
from foqs.keys import is_live


@dataclass(frozen=True, slots=True)
class Change:
    """`config` is what runs from now on; `live` and `restart` are the names of keys that are other than before: taken
    over, and waiting for a restart."""

    config: Config
    live: tuple[str, ...]
    restart: tuple[str, ...]


def change(running: Config, read: Config) -> Change:
    """What a newer configuration changes of the one that runs. Raises NotValid when the keys that can be changed live
    do not go with those that cannot."""
    live: list[str] = []
    restart: list[str] = []
    values = {name: _changed(running, read, name, live, restart) for name in Config.model_fields}
    try:
        return Change(Config(**values), tuple(live), tuple(restart))
    except ValidationError as error:
        told = [error_line(detail) for detail in error.errors(include_url=False, include_input=False)]
        raise NotValid([f"{line} (with the keys that need a restart as they were)" for line in told]) from None


def _changed(running: Config, read: Config, name: str, live: list[str], restart: list[str]) -> Any:
    """The value of one section from now on."""
    before, after = getattr(running, name), getattr(read, name)
    if isinstance(before, tuple) or before is None or after is None:
        if before != after:
            restart.append(name)
        return before
    values = before.model_dump()
    for key, field in type(before).model_fields.items():
        if getattr(before, key) == getattr(after, key):
            continue
        (live if is_live(field) else restart).append(f"{name}.{key}")
        if is_live(field):
            values[key] = getattr(after, key)
    return values
