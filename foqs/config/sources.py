"""The sources of a configuration: a file, the environment, the command line, and files of secrets."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from foqs.config.fields import DELIMITER, FILE, PREFIX, env_name, is_path, secret_mark, section_of

Where = tuple[str | int, ...]
_MOST_SECRET_BYTES = 64 * 1024


@dataclass(slots=True)
class Source:
    """One source. `values` are nested as in foqs.toml, with secrets read from `files`. An error is (where, text)."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    files: dict[Where, Path] = field(default_factory=dict)
    errors: list[tuple[Where, str]] = field(default_factory=list)

    def holds(self, where: Where) -> bool:
        """True if the source sets that key. A list comes from one source as a whole."""
        values: Any = self.values
        for part in where:
            if not isinstance(values, Mapping):
                return isinstance(values, list)
            if part not in values:
                return False
            values = values[part]
        return True

    def follow_paths(self, model: type[BaseModel], base: Path) -> None:
        """Replace each key `..._file` of a secret by the secret in that file. Relative paths start at `base`."""
        self._read_section(model, self.values, (), base)

    def _read_section(self, model: type[BaseModel], values: dict[str, Any], where: Where, base: Path) -> None:
        for name, info in model.model_fields.items():
            section, _ = section_of(info)
            if secret_mark(info) is not None and name + FILE in values:
                self._read_secret(values, name, where, base)
            elif is_path(info) and isinstance(values.get(name), str) and values[name]:
                values[name] = str(base / values[name])
            elif section is not None:
                below = values.get(name)
                if isinstance(below, dict):
                    self._read_section(section, below, (*where, name), base)
                elif isinstance(below, list):
                    for at, each in enumerate(below):
                        if isinstance(each, dict):
                            self._read_section(section, each, (*where, name, at), base)

    def _read_secret(self, values: dict[str, Any], name: str, where: Where, base: Path) -> None:
        key = (*where, name + FILE)
        given = values.pop(name + FILE)
        if name in values:
            self.errors.append((key, f"{name} is given as well: give one of the two"))
        elif not isinstance(given, str) or not given or "\0" in given:
            self.errors.append((key, "not the path of a file"))
        else:
            path = base / given
            try:
                values[name] = _secret(path)
                self.files[*where, name] = path
            except OSError as error:
                self.errors.append((key, f"cannot read {path}: {error.strerror}"))
            except ValueError as error:
                self.errors.append((key, f"{path} {error}"))


def _secret(path: Path) -> str:
    """Return the text without its line end. Raises OSError, and ValueError without any part of the text."""
    with path.open("rb") as file:
        read = file.read(_MOST_SECRET_BYTES + 1)
    if len(read) > _MOST_SECRET_BYTES:
        raise ValueError(f"is larger than {_MOST_SECRET_BYTES} bytes")
    try:
        text = read.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not text:
        raise ValueError("is empty")
    return text


def from_file(model: type[BaseModel], path: Path) -> Source:
    """Read a file. If it cannot be read, or is not TOML, the source has one error with where = ()."""
    source = Source(str(path))
    try:
        source.values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        source.errors.append(((), f"{path}: {error.strerror}"))
    except UnicodeDecodeError:
        source.errors.append(((), f"{path}: not UTF-8"))
    except RecursionError:
        source.errors.append(((), f"{path}: nested too deeply"))
    except ValueError as error:  # among them TOMLDecodeError
        source.errors.append(((), f"{path}: {error}"))
    source.follow_paths(model, path.parent)
    return source


def from_environment(settings: type[BaseSettings]) -> Source:
    source = Source("environment")
    source.values = _Environment(settings, source)()
    for name in os.environ:
        if not name.upper().startswith(PREFIX):
            continue
        section, found, _ = name.upper().removeprefix(PREFIX).partition(DELIMITER)
        if found and section.lower() not in settings.model_fields:
            source.errors.append(((name,), "there is no such section"))
        elif not found and (meant := _meant(settings, section.lower())) and "://" not in os.environ[name]:
            # Kubernetes sets FOQS_SERVER_PORT=tcp://... for a service with the name foqs-server.
            source.errors.append(((name,), f"foqs does not read this variable: write {env_name(meant)}"))
    source.follow_paths(settings, Path.cwd())
    return source


def _meant(settings: type[BaseModel], text: str) -> str:
    """Return the key that a name with one underscore means, for example server_port; empty if there is none."""
    for name, info in settings.model_fields.items():
        section, many = section_of(info)
        rest = text.removeprefix(f"{name}_")
        if section is None or many or rest == text:
            continue
        keys = {key for one in section.model_fields for key in (one, one + FILE)}
        if rest in keys:
            return f"{name}.{rest}"
        if below := _meant(section, rest):
            return f"{name}.{below}"
    return ""


class _Environment(EnvSettingsSource):
    """Collects a value that is not JSON as one of many errors, where pydantic would stop."""

    def __init__(self, settings: type[BaseSettings], source: Source) -> None:
        super().__init__(settings)
        self._source = source

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            pass
        # pydantic does not pass the variable's name. Its text is the same object, so look for that.
        found = (name for name, text in self.env_vars.items() if text is value and name.endswith(field_name))
        name = next(found, env_name(field_name).lower())
        where = tuple(name.removeprefix(PREFIX.lower()).split(DELIMITER))
        self._source.errors.append((where, f"{name.upper()} is not JSON"))
        section, many = section_of(field)
        return None if section is None or many else {}  # other variables may set keys of the same section


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return `low` overridden by `high`: sections key by key, lists whole."""
    both = dict(low)
    for name, value in high.items():
        below = both.get(name)
        both[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both
