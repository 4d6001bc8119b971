"""Configuration: one typed, frozen tree, validated whole; its sources; and its change in a running host.

`foqs.toml`, the variables `FOQS_SECTION__KEY`, the command line and files of secrets fill it. The keys and their
descriptions are in `foqs.config.schema`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from foqs.checks import same_account
from foqs.config.fields import (
    DELIMITER,
    FILE,
    NO_BOOL,
    PREFIX,
    PREVIOUS,
    env_name,
    is_live,
    is_path,
    is_path_table,
    key_at,
    refuse,
    secret_mark,
    section_of,
)
from foqs.config.schema import (
    ADMIN_DISTANCE,
    AdminSection,
    AuthSection,
    BreakerSection,
    ConsoleSection,
    HooksSection,
    HostSection,
    LimitsSection,
    LogSection,
    PushSection,
    QuotasSection,
    ServerSection,
    ShardSection,
    StoreSection,
    TlsSection,
    ZookeeperSection,
)
from foqs.errors import Invalid

Where = tuple[str | int, ...]
_MOST_SECRET_BYTES = 64 * 1024


class Config(BaseSettings):
    """All sections of foqs.toml. `load` reads the values."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        validate_default=True,
        hide_input_in_errors=True,
    )

    server: ServerSection = ServerSection()
    log: LogSection = LogSection()
    limits: LimitsSection = LimitsSection()
    host: HostSection = HostSection()
    admin: AdminSection = AdminSection()
    breaker: BreakerSection = BreakerSection()
    store: StoreSection = StoreSection()
    zookeeper: ZookeeperSection | None = None
    shards: tuple[ShardSection, ...] = ()
    quotas: QuotasSection = QuotasSection()
    hooks: HooksSection = HooksSection()
    tls: TlsSection | None = None
    auth: AuthSection | None = None
    console: ConsoleSection | None = None
    push: PushSection = PushSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the given values only: `load` reads the sources, to report all errors and the source of each value."""
        return (init_settings,)

    @model_validator(mode="after")
    def _go_together(self) -> Config:
        refuse(
            {
                "shards and zookeeper exclude each other: in a cluster the shards are in ZooKeeper": bool(
                    self.zookeeper is not None and self.shards
                ),
                "host.budget_bytes is below two frames: raise it, or lower limits.frame_bytes": (
                    2 * self.limits.frame_bytes > self.host.budget_bytes
                ),
                "server.requests_per_second_per_address: hosts of a cluster need an auth.cluster_secret": bool(
                    self.zookeeper is not None
                    and bool(self.server.requests_per_second_per_address)
                    and (self.auth is None or self.auth.cluster_secret is None)
                ),
                "auth: hosts of a cluster with a principals_file need a cluster_secret": bool(
                    self.zookeeper is not None
                    and self.auth is not None
                    and self.auth.principals_file is not None
                    and self.auth.cluster_secret is None
                ),
            }
        )
        return self

    @property
    def admin_port(self) -> int:
        """The admin port. 0 picks a free one; so does a server port that is 0 or too high."""
        if self.admin.port is not None:
            return self.admin.port
        port = self.server.port + ADMIN_DISTANCE
        return port if self.server.port and port <= 65535 else 0

    @field_validator("shards")
    @classmethod
    def _distinct(cls, shards: tuple[ShardSection, ...]) -> tuple[ShardSection, ...]:
        distinct = {what: len({getattr(shard, what) for shard in shards}) for what in ("id", "url")}
        refuse({f"two shards have the same {what}": count < len(shards) for what, count in distinct.items()})
        return shards


class NotValid(Invalid):
    """A configuration that is not valid. Each of `errors` begins with the key, the file or the variable."""

    def __init__(self, errors: list[str]) -> None:
        before = " " if len(errors) == 1 else "\n  "
        super().__init__("".join(["configuration is not valid:", *(before + line for line in errors)]))
        self.errors = errors


class Loaded(NamedTuple):
    """A configuration and its sources; the first source that holds a key gives its value."""

    config: Config
    sources: tuple[Source, ...]

    def source_of(self, where: Where) -> Source | None:
        """Return the source of a key; None for a default."""
        return next((source for source in self.sources if source.holds(where)), None)


def load(path: Path | None = None, **sections: Any) -> Config:
    """Read `path` (TOML), overridden by the environment, overridden by `sections` (command line options).

    Raises NotValid with every error, and Invalid if there is no file.
    """
    return load_with_sources(path, **sections).config


def load_with_sources(path: Path | None = None, **sections: Any) -> Loaded:
    """Load a configuration together with the source of each value."""
    if path is not None and not path.is_file():
        raise Invalid(f"no configuration file at {path}")
    sources = [Source("command line", sections), from_environment(Config)]
    if path is not None:
        sources.append(from_file(Config, path))
    values: dict[str, Any] = {}
    for source in reversed(sources):
        values = merged(values, source.values)
    found = [error for source in sources for error in source.errors]
    errors = [_line(where, what) for where, what in found]
    try:
        config = Config(**values)
    except ValidationError as error:
        blamed = [where for where, _ in found if not where or where[0] in Config.model_fields]
        details = error.errors(include_url=False, include_input=False, include_context=False)
        errors += [error_line(detail, sources) for detail in details if not _follows(detail, blamed)]
        raise NotValid(errors) from None
    if errors:
        raise NotValid(errors)
    return Loaded(config, tuple(sources))


def _line(where: Where, what: str) -> str:
    return f"{'.'.join(map(str, where))}: {what}" if where else what


def _follows(detail: ErrorDetails, blamed: list[Where]) -> bool:
    """Return True if an error may follow from a value that could not be read, which has its own error."""
    where, absent = detail["loc"], detail["type"] in ("missing", "value_error")
    if () in blamed and (detail["type"] == "missing" or (absent and len(where) < 2)):  # a file that does not parse
        return True
    for one in blamed:
        key = (*one[:-1], str(one[-1]).removesuffix(FILE)) if one else ()
        if (where and where == key) or (one and absent and (where[: len(one)] == one or where == one[: len(where)])):
            return True
    return False


def error_line(detail: ErrorDetails, sources: Sequence[Source] = ()) -> str:
    """Return an error of pydantic with its key and its source, but without the value, which may be a secret."""
    where, what = detail["loc"], detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        what = f"there is no such {'key' if len(where) > 1 else 'section'}{_near(where)}"
    if not where:
        return f"foqs.toml: {what}"
    if (
        (detail["type"] != "value_error" or what == NO_BOOL)
        and (key := key_at(Config, where)) is not None
        and key.bounds
    ):
        what = f"it must be {'an' if key.type.startswith('integer') else 'a'} {key.type}"
    source = next((source for source in sources if source.holds(where)), None)
    if source is None or source.name != "environment":
        return _line(where, what)
    names = takewhile(lambda part: isinstance(part, str), where)  # a list is one variable
    return f"{_line(where, what)} ({env_name('.'.join(map(str, names)))})"


def _near(where: Where) -> str:
    model: type[BaseModel] | None = Config
    for part in where[:-1]:
        if model is not None and isinstance(part, str) and part in model.model_fields:
            model = section_of(model.model_fields[part])[0]
    known = list(model.model_fields) if model is not None else []
    near = difflib.get_close_matches(str(where[-1]), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


# ------------------------------------------------------------------------------------------------ the sources


@dataclass(slots=True)
class Source:
    """One source. `values` are nested as in foqs.toml, with secrets read from `files`. An error is (where, text)."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    files: dict[Where, Path] = field(default_factory=dict)
    errors: list[tuple[Where, str]] = field(default_factory=list)

    def holds(self, where: Where) -> bool:
        """Return True if the source sets that key. A list comes from one source as a whole."""
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
        self._follow(model, self.values, (), base)

    def _follow(self, model: type[BaseModel], values: dict[str, Any], where: Where, base: Path) -> None:
        for name, info in model.model_fields.items():
            section, _ = section_of(info)
            if secret_mark(info) is not None and name + FILE in values:
                self._read_secret(values, name, where, base)
            elif is_path(info) and isinstance(values.get(name), str) and values[name]:
                values[name] = str(base / values[name])
            elif is_path_table(info) and isinstance(values.get(name), dict):
                table = values[name].items()
                values[name] = {key: str(base / one) if isinstance(one, str) and one else one for key, one in table}
            elif section is not None:
                below = values.get(name)
                if isinstance(below, dict):
                    self._follow(section, below, (*where, name), base)
                elif isinstance(below, list):
                    for at, each in enumerate(below):
                        if isinstance(each, dict):
                            self._follow(section, each, (*where, name, at), base)

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
            except FileNotFoundError as error:
                if not name.endswith(PREVIOUS):  # else the key stays in the file, and the secret's file comes and goes
                    self.errors.append((key, f"cannot read {path}: {error.strerror}"))
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


# ------------------------------------------------------------------------------------- a change in a running host


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


def _same_accounts(before: Sequence[ShardSection], after: Sequence[ShardSection]) -> bool:
    """Return True if the shards differ in passwords at most, and in files of TLS."""
    return [one.id for one in before] == [one.id for one in after] and all(
        same_account(one.url, other.url) for one, other in zip(before, after, strict=True)
    )


def _changed(running: Config, read: Config, name: str, live: list[str], restart: list[str]) -> Any:
    """Return the new value of one section."""
    before, after = getattr(running, name), getattr(read, name)
    if name == "shards" and before != after and _same_accounts(before, after):
        live.append(name)
        return after
    if isinstance(before, tuple) or before is None or after is None:
        if before != after:
            restart.append(name)
        return before
    values = before.model_dump()
    for key, option in type(before).model_fields.items():
        if getattr(before, key) == getattr(after, key):
            continue
        (live if is_live(option) else restart).append(f"{name}.{key}")
        if is_live(option):
            values[key] = getattr(after, key)
    return values
