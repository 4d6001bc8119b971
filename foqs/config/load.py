"""Configuration: one typed, frozen tree, validated whole. `foqs.toml` and `FOQS_SECTION__KEY` fill it.

The keys and their descriptions are in `foqs.config.schema`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from foqs.config.fields import DELIMITER, FILE, NO_BOOL, PREFIX, env_name, key_at, refuse, section_of
from foqs.config.schema import (
    ADMIN_DISTANCE,
    AdminSection,
    AuthSection,
    BreakerSection,
    HooksSection,
    HostSection,
    LimitsSection,
    LogSection,
    QuotasSection,
    ServerSection,
    ShardSection,
    StoreSection,
    TlsSection,
    ZookeeperSection,
)
from foqs.config.sources import Source, Where, from_environment, from_file, merged
from foqs.errors import Invalid


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
    """True if an error may be only a consequence of a value that could not be read, which has its own error."""
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
