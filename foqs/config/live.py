"""Applies a newer configuration to a running host: the live keys, if they fit the keys that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from foqs.config.fields import is_live
from foqs.config.load import Config, NotValid, error_line


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of a reload: the new `config`, and the changed keys: in effect, and waiting for a restart."""

    config: Config
    live: tuple[str, ...]
    restart: tuple[str, ...]


def change(running: Config, read: Config) -> Change:
    """Apply the live keys of `read` to `running`. Raises NotValid if they do not fit the keys that need a restart."""
    live: list[str] = []
    restart: list[str] = []
    values = {name: _changed(running, read, name, live, restart) for name in Config.model_fields}
    try:
        return Change(Config(**values), tuple(live), tuple(restart))
    except ValidationError as error:
        lines = [error_line(detail) for detail in error.errors(include_url=False, include_input=False)]
        raise NotValid([f"{line} (keys that need a restart keep their old values)" for line in lines]) from None


def _changed(running: Config, read: Config, name: str, live: list[str], restart: list[str]) -> Any:
    """Return the new value of one section."""
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
