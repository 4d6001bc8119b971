"""What holds of every copy of settings: its log and its document say the same."""

from __future__ import annotations

from foqs.client import Client
from foqs.policies.settings import Settings
from foqs.settings_log import Value, same


def disagreements(settings: Settings, *, older_hosts: bool = False, behind: bool = False) -> list[str]:
    """Return what the log of a copy says otherwise than its document. `older_hosts`: some versions may lack a record,
    and the values around one of these need not fit. `behind`: the log may lack the last versions."""
    found: list[str] = []
    records = settings.log.records
    versions = [record.version for record in records]
    if versions != sorted(set(versions)) or (versions and versions[-1] > settings.version):
        found.append(f"version {settings.version} has a log of the versions {versions}")
    if older_hosts:
        return found
    behind = behind and settings.log.version < settings.version
    last = settings.log.version if behind else settings.version
    if last and (not versions or versions != list(range(versions[0], last + 1))):
        found.append(f"version {settings.version} has a log of the versions {versions} alone")
    later: dict[str, Value] = {}
    for record in reversed(records):
        for key, (old, new) in record.changes.items():
            present = new if behind else settings.entries.get(key)
            if not same(new, later.get(key, present)):
                found.append(f"{key} is {new!r} by version {record.version}, and then something else")
            later[key] = old
    if behind:
        return found
    if versions[:1] == [1] and not any(record.left_out for record in records):
        missing = [key for key in settings.entries if key not in later]
        found += [f"{key} is in no version" for key in missing]
        found += [f"{key} was there before version 1" for key, value in later.items() if value is not None]
    for key, stamp in settings.stamps.items():
        if key not in settings.entries:
            found.append(f"{key} has a stamp, and is no entry")
        written = [record for record in records if key in record.changes]
        if written and written[-1].stamp != stamp:
            found.append(f"{key} has the stamp {stamp}, and was changed by version {written[-1].version}")
    return found


def checked(client: Client, confirmed: int) -> int:
    """Compare the log with the settings, as a host answers, and return their version, `confirmed` or a later one."""
    found, log = client.settings(), client.settings_log()
    assert found.version == log.version >= confirmed
    versions = [one.version for one in log.versions]
    assert versions == list(range(found.version, max(0, found.version - 100), -1))
    present: dict[str, str | None] = dict(found.entries)
    for one in log.versions:
        for key, (old, new) in one.changes.items():
            assert present.get(key) == new, f"{key} of version {one.version}"
            present[key] = old if isinstance(old, str) else None
    return found.version
