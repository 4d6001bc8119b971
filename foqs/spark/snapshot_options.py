"""The options of a snapshot."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from foqs.config.schema import ZookeeperSection
from foqs.errors import Invalid
from foqs.ids import MAX_SHARD
from foqs.spark.options import ExtraColumns, Options
from foqs.spark.snapshot_wanted import Wanted

_NUMBERED = re.compile(r"([0-9]{1,5})=(.+)", re.ASCII)
_Secret = Annotated[str | None, Field(repr=False)]


class SnapshotOptions(Options):
    """The places of the shards (one of `shards`, `config`, `zookeeper`), and the selection of items.

    `shards`: SQLAlchemy URLs separated by commas or white space, each as a URL or as number=url. `config`: the path of
    a foqs.toml. `zookeeper`: host:port, several separated by commas. `user` and `password` replace those of the URLs
    (SQLite has none). `page_rows`: items in memory at a time. `extra_columns`: with `headers` each other column of the
    schema is a header of the item.
    """

    shards: _Secret = None
    config: str | None = None
    zookeeper: str | None = None
    zookeeper_root: str = "/foqs"
    zookeeper_auth_scheme: str | None = None
    zookeeper_auth_credential: _Secret = None
    user: str | None = None
    password: _Secret = None
    payloads: bool = False
    partitions_per_shard: Annotated[int, Field(ge=1, le=1_000)] = 1
    page_rows: Annotated[int, Field(ge=1, le=100_000)] = 5_000
    namespace: str | None = None
    topic: str | None = None
    state: Literal["ready", "delayed", "leased"] | None = None
    extra_columns: ExtraColumns = "refuse"

    @field_validator("shards")
    @classmethod
    def _listed(cls, text: str | None) -> str | None:
        if text is not None:
            numbers = [number for number, _ in _shards(text)]
            known = [number for number in numbers if number is not None]
            if not numbers:
                raise ValueError("no URL")
            if len(set(known)) != len(known):
                raise ValueError("two shards have the same number")
            if not all(1 <= number <= MAX_SHARD for number in known):
                raise ValueError(f"a shard's number is not in 1..{MAX_SHARD}")
        return text

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        places = (self.shards, self.config, self.zookeeper)
        if sum(place is not None for place in places) != 1:
            raise ValueError("give exactly one of the options shards, config and zookeeper: it names the shards")
        if self.password is not None and self.user is None:
            raise ValueError("option password needs option user")
        return self

    @property
    def urls(self) -> list[tuple[int | None, str]]:
        """Return the number (None if not given) and the URL of each entry of `shards`."""
        return _shards(self.shards or "")

    @property
    def section(self) -> ZookeeperSection:
        """Return the configuration of `zookeeper`. Raises Invalid."""
        try:
            return ZookeeperSection.model_validate(
                {
                    "hosts": self.zookeeper,
                    "root": self.zookeeper_root,
                    "auth_scheme": self.zookeeper_auth_scheme,
                    "auth_credential": self.zookeeper_auth_credential,
                }
            )
        except ValueError as error:
            found: list[Any] = getattr(error, "errors", list)()
            words = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in found)
            raise Invalid(f"option zookeeper: {words}") from None

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.namespace, self.topic, self.state)


def _shards(text: str) -> list[tuple[int | None, str]]:
    """Split at commas and white space. A comma inside a URL belongs to it: a new URL begins with a scheme."""
    found: list[tuple[int | None, str]] = []
    for part in re.split(r"\s+|,(?=\s|$|(?:[0-9]+=)?[a-z]+(?:\+[a-z]+)?://)", text):
        if part:
            numbered = _NUMBERED.fullmatch(part)
            found.append((int(numbered[1]), numbered[2]) if numbered else (None, part))
    return found
