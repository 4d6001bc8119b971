"""The options of a writer."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from foqs.checks import LONGEST_MS
from foqs.spark.options import ExtraColumns, Options

MiB = 1 << 20
_JOB = re.compile(r"[\w.-]{1,100}", re.ASCII)


class WriteOptions(Options):
    """Options of `df.write` and `df.writeStream`. `max_rows_per_second` applies to all tasks that run at a time
    together, 0: no limit; `tasks` is their number. `job_id` names a write of a frame, so that it can be repeated.
    `equal_rows_path` is a folder or URL that the driver and all tasks can use. With `extra_columns=headers` each other
    column of a frame is a header of its items."""

    endpoints: Annotated[str, Field(min_length=1)]
    namespace: Annotated[str, Field(min_length=1)]
    topic: Annotated[str | None, Field(min_length=1)] = None
    token: str | None = Field(default=None, repr=False)
    tls: str | None = None
    dedup_keys: Literal["auto", "row", "partition", "none"] = "auto"
    job_id: str | None = None
    batch_rows: Annotated[int, Field(ge=1, le=10_000)] = 2_000
    batch_bytes: Annotated[int, Field(ge=1, le=12 * MiB)] = 4 * MiB
    in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    timeout_ms: Annotated[int, Field(ge=1, le=LONGEST_MS)] = 600_000
    max_rows_per_second: Annotated[float | None, Field(ge=0, le=1e9)] = None
    tasks: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    on_invalid: Literal["fail", "collect"] = "fail"
    invalid_path: str | None = None
    metrics_path: str | None = None
    equal_rows_path: Annotated[str | None, Field(min_length=1)] = None
    extra_columns: ExtraColumns = "refuse"

    @field_validator("job_id")
    @classmethod
    def _short(cls, given: str | None) -> str | None:
        if given is not None and not _JOB.fullmatch(given):
            raise ValueError(f"{given!r} is not 1 to 100 letters, digits, dots, dashes and underscores")
        return given

    @model_validator(mode="after")
    def _belong_together(self) -> WriteOptions:
        if self.on_invalid == "collect" and self.invalid_path is None:
            raise ValueError("onInvalid=collect needs the option invalidPath")
        if self.max_rows_per_second and self.tasks is None:
            raise ValueError("maxRowsPerSecond needs the option tasks: the number of tasks that write at a time")
        return self

    @property
    def rows_per_second(self) -> float | None:
        """Return the share of one task."""
        if not self.max_rows_per_second or self.tasks is None:
            return None
        return self.max_rows_per_second / self.tasks
