"""foqs.toml and the environment: every error, and what is valid and dangerous all the same."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from foqs.config import Config, NotValid, load_with_sources
from foqs.doctor.check import Check, Group, Verdict
from foqs.errors import Invalid
from foqs.exposure import exposed
from foqs.keys import secret_mark, section_of
from foqs.sources import Source, Where

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_OTHERS_READ = 0o004


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has for a host: bytes of memory, open files (None: no limit)."""

    memory_bytes: int
    files: int | None


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control group, or one without a bound
        memory = min(memory, int(_CGROUP.read_text()))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(memory, None if hard == resource.RLIM_INFINITY else hard)


def read(path: Path) -> tuple[Config | None, list[Check]]:
    """None with the errors, a line each."""
    try:
        loaded = load_with_sources(path)
    except NotValid as error:
        return None, [
            _check(Verdict.WRONG, str(path), line, "correct it: foqs config explain KEY") for line in error.errors
        ]
    except Invalid as error:
        return None, [_check(Verdict.WRONG, str(path), error.message, "correct it")]
    config = loaded.config
    checks = [_check(Verdict.OK, str(path), "valid")]
    if config.zookeeper is None and not config.shards:
        mend = "add [zookeeper] for a cluster, or [[shards]] for a host that is alone"
        checks.append(_check(Verdict.WRONG, "shards", "neither [zookeeper] nor [[shards]]", mend))
    for source in loaded.sources:
        checks += _open_secrets(source, path)
    return config, checks


def dangers(config: Config, machine: Machine, workers: int) -> list[Check]:
    """`workers` hosts of this configuration run on the machine."""
    return [*_exposed(config), *_too_much(config, machine, workers), *_hasty(config)]


def _exposed(config: Config) -> list[Check]:
    mends = {"tls": "set tls.cert_file and tls.key_file", "auth": "set auth.principals_file"}
    where = f"server.host {config.server.host} is beyond this machine"
    return [_check(Verdict.WARNING, key, f"{where}, and {why}", mends[key]) for key, why in exposed(config).items()]


def _too_much(config: Config, machine: Machine, workers: int) -> list[Check]:
    checks = []
    budget = workers * config.host.budget_bytes
    if budget > machine.memory_bytes:
        why = f"{_mib(budget)} for {workers} of them" if workers > 1 else _mib(budget)
        why = f"{why} is more than the memory there is, {_mib(machine.memory_bytes)}"
        checks.append(_check(Verdict.WARNING, "host.budget_bytes", why, "lower it, or take a larger machine"))
    wanted = config.server.open_files
    if machine.files is not None and machine.files < wanted:
        why = f"{config.server.max_connections} need {wanted} open files, and this user may have {machine.files}"
        mend = "raise the limit (ulimit -Hn, systemd: LimitNOFILE), or lower it"
        checks.append(_check(Verdict.WARNING, "server.max_connections", why, mend))
    return checks


def _hasty(config: Config) -> list[Check]:
    zookeeper, server = config.zookeeper, config.server
    if zookeeper is None:
        return []
    checks = []
    if server.grace_ms < zookeeper.handover_ms:
        why = (
            f"{server.grace_ms} is less than zookeeper.handover_ms, {zookeeper.handover_ms}: a host that is stopped "
            "may end before its shards are handed over"
        )
        checks.append(_check(Verdict.WARNING, "server.grace_ms", why, "raise it"))
    return checks


def _open_secrets(source: Source, path: Path) -> list[Check]:
    """In files of secrets, and in foqs.toml itself. Values from the environment are nobody else's to read."""
    files = {_dotted(where): file for where, file in source.files.items()}
    if source.name == str(path) and (keys := [_dotted(where) for where in _secrets(source, Config, source.values, ())]):
        files[", ".join(keys)] = path
    return [
        _check(Verdict.WARNING, keys, f"every user of this machine can read {file}", f"chmod o-r {file}")
        for keys, file in files.items()
        if is_open(file)
    ]


def is_open(path: Path) -> bool:
    """Whether others than its owner and group can read it."""
    try:
        return bool(path.stat().st_mode & _OTHERS_READ)
    except OSError:  # told by who reads it
        return False


def _secrets(source: Source, model: type[BaseModel], values: Mapping[str, Any], where: Where) -> Iterator[Where]:
    """Keys whose value would not be shown as it is, and was not read from a file of its own."""
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
