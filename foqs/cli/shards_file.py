"""The file of `foqs shards apply`: the shards of a cluster."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from foqs.config.schema import ShardSection
from foqs.errors import Invalid
from foqs.shardmgr.facts import ShardFact


class _Shard(ShardSection):
    weight: Annotated[float, Field(gt=0, lt=1e6)] = 1.0


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    shards: Annotated[tuple[_Shard, ...], Field(min_length=1)]

    @field_validator("shards")
    @classmethod
    def _distinct(cls, shards: tuple[_Shard, ...]) -> tuple[_Shard, ...]:
        if min(len({shard.id for shard in shards}), len({shard.url for shard in shards})) < len(shards):
            raise ValueError("two shards have the same id or url")
        return shards


def read(path: Path) -> list[ShardFact]:
    """Read the file. Raises Invalid with every error but no value, because URLs hold passwords."""
    try:
        found = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise Invalid(f"{path}: {'; '.join(lines)}") from None
    except RecursionError:
        raise Invalid(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{path}: {error}") from None
    return [ShardFact(shard.id, shard.url, shard.weight) for shard in found.shards]
