"""Checks foqs.toml and the environment for errors, and for valid but dangerous settings."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from foqs.config.access import exposed
from foqs.config.fields import secret_mark, section_of
from foqs.config.load import Config, NotValid, Source, Where, load_with_sources
from foqs.doctor.check import Check, Group, Verdict
from foqs.errors import Invalid

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_OTHERS_READ = 0o004


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of this machine: bytes of memory, open files (None: no limit)."""

    memory_bytes: int
    files: int | None


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control group, or one without a limit
        memory = min(memory, int(_CGROUP.read_text()))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(memory, None if hard == resource.RLIM_INFINITY else hard)


def read(path: Path) -> tuple[Config | None, list[Check]]:
    """Read the configuration. None and a check for each error if it is not valid."""
    try:
        loaded = load_with_sources(path)
    except NotValid as error:
        return None, [
            _check(Verdict.WRONG, str(path), line, "correct the key; `foqs config explain KEY` describes it")
            for line in error.errors
        ]
    except Invalid as error:
        return None, [_check(Verdict.WRONG, str(path), error.message, "correct the path or the file")]
    config = loaded.config
    checks = [_check(Verdict.OK, str(path), "valid")]
    if config.zookeeper is None and not config.shards:
        mend = "add [zookeeper] for a cluster, or [[shards]] for a single host"
        checks.append(_check(Verdict.WRONG, "shards", "the configuration has neither [zookeeper] nor [[shards]]", mend))
    for source in loaded.sources:
        checks += _open_secrets(source, path)
    return config, checks


def dangers(config: Config, machine: Machine, workers: int) -> list[Check]:
    """Return the dangers if `workers` hosts with this configuration run on the machine."""
    return [*_exposed(config), *_too_much(config, machine, workers), *_hasty(config)]


def _exposed(config: Config) -> list[Check]:
    mends = {"tls": "set tls.cert_file and tls.key_file", "auth": "set auth.principals_file"}
    where = f"other machines can reach server.host {config.server.host}"
    return [_check(Verdict.WARNING, key, f"{where}, and {why}", mends[key]) for key, why in exposed(config).items()]


def _too_much(config: Config, machine: Machine, workers: int) -> list[Check]:
    checks = []
    budget = workers * config.host.budget_bytes
    if budget > machine.memory_bytes:
        why = f"{_mib(budget)} for {workers} workers" if workers > 1 else _mib(budget)
        why = f"{why} is more than the machine's memory, {_mib(machine.memory_bytes)}"
        checks.append(_check(Verdict.WARNING, "host.budget_bytes", why, "lower it, or use a larger machine"))
    wanted = config.server.open_files
    if machine.files is not None and machine.files < wanted:
        why = (
            f"{config.server.max_connections} connections need {wanted} open files; this user may open {machine.files}"
        )
        mend = "raise the limit of files (ulimit -Hn, systemd: LimitNOFILE), or lower server.max_connections"
        checks.append(_check(Verdict.WARNING, "server.max_connections", why, mend))
    return checks


def _hasty(config: Config) -> list[Check]:
    zookeeper, server = config.zookeeper, config.server
    if zookeeper is None:
        return []
    checks = []
    if server.grace_ms < zookeeper.handover_ms:
        why = (
            f"{server.grace_ms} is less than zookeeper.handover_ms, {zookeeper.handover_ms}: a stopping host may end "
            "before it has handed over its shards"
        )
        checks.append(_check(Verdict.WARNING, "server.grace_ms", why, "raise it to zookeeper.handover_ms or more"))
    return checks


def _open_secrets(source: Source, path: Path) -> list[Check]:
    """Check that other users cannot read the files with secrets. Only this user can read its environment."""
    files = {_dotted(where): file for where, file in source.files.items()}
    if source.name == str(path) and (keys := [_dotted(where) for where in _secrets(source, Config, source.values, ())]):
        files[", ".join(keys)] = path
    return [
        _check(Verdict.WARNING, keys, f"every user of this machine can read {file}", f"chmod o-r {file}")
        for keys, file in files.items()
        if is_open(file)
    ]


def is_open(path: Path) -> bool:
    """True if users outside the owner and group of the file can read it."""
    try:
        return bool(path.stat().st_mode & _OTHERS_READ)
    except OSError:  # reading the configuration reports it
        return False


def _secrets(source: Source, model: type[BaseModel], values: Mapping[str, Any], where: Where) -> Iterator[Where]:
    """Yield the keys of secrets that were not read from files of their own."""
    for name, info in model.model_fields.items():
        value, key, mark = values.get(name), (*where, name), secret_mark(info)
        section, _ = section_of(info)
        if mark is not None and isinstance(value, str) and key not in source.files and mark.masked(value) != value:
            yield key
        elif section is not None:
            for at, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(each, Mapping):
                    yield from _secrets(source, section, each, key if at is None else (*key, at))


def _dotted(where: Where) -> str:
    return ".".join(map(str, where))


def _mib(size: int) -> str:
    return f"{size >> 20:,} MiB"


def _check(verdict: Verdict, name: str, found: str, mend: str = "") -> Check:
    return Check(Group.CONFIGURATION, name, verdict, found, mend)
