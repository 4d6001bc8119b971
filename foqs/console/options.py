"""How a console runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foqs.console.proxy import Proxy


@dataclass(frozen=True, slots=True)
class Options:
    """How a console runs. `address`: of the service, for its words. `names`: of the console, as browsers may call it,
    with the scheme of each. `private`: only programs of this machine reach it. `may_be_open`: without a token and a
    certificate of its own, what the service allows it, it allows everyone. `proxy`: signs the users in, in place of the
    console. `state_dir`: an existing folder, which keeps the jobs. `trace_url`: of a trace, with `{trace_id}` in the
    place of its id."""

    address: str
    names: Mapping[str, str]
    private: bool
    read_only: bool = False
    may_be_open: bool = True
    proxy: Proxy | None = None
    idle_s: float = 8 * 3600.0
    state_dir: Path | None = None
    trace_url: str | None = None
