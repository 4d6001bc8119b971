"""Find what loses commits that were answered when a replica takes a server's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from foqs.store.errors import Kind
from foqs.store.link import Link
from foqs.store.server import Finding

_LONG_MS = 3_600_000
"""With a shorter time-out the server stops to wait for replicas that do not answer for a while."""
_VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name LIKE 'rpl\\_semi\\_sync\\_%' OR Variable_name IN "
_VARIABLES += "('log_bin', 'wsrep_on', 'group_replication_group_name', 'group_replication_consistency', 'read_only')"
_STATUS = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'rpl\\_semi\\_sync\\_%' OR Variable_name IN "
_STATUS += "('Slaves_connected', 'Slave_running')"
_NAMES = {"MariaDB": "master", "MySQL": "source"}
_KEEP = ", and in the server's configuration"
_LOSS = "a fail-over loses commits that were answered (promises 1 and 2)"


class Said(NamedTuple):
    """What a server says about its replication. `replicas`: None where the account may not see them."""

    product: str
    variables: Mapping[str, str]
    status: Mapping[str, str]
    replicas: int | None


def findings(link: Link, product: str) -> list[Finding]:
    """Ask the server, and judge. Raises the driver's errors, except for missing rights."""
    variables = {str(name).lower(): str(value) for name, value in link.fetch(_VARIABLES)}
    status = {str(name).lower(): str(value) for name, value in link.fetch(_STATUS)}
    return list(judge(Said(product, variables, status, _replicas(link, product, status))))


def _replicas(link: Link, product: str, status: Mapping[str, str]) -> int | None:
    if product == "MariaDB":
        return int(status.get("slaves_connected", "0"))
    try:
        return len(link.fetch("SHOW REPLICAS"))
    except link.errors.error as error:
        if link.errors.kind(error) is Kind.REFUSED:
            return None
        raise


def judge(said: Said) -> Iterator[Finding]:
    """Return what lets a commit that was answered be missing on the next primary.

    The servers of a Galera cluster, and of a replication group, have it before the answer.
    """
    variables = said.variables
    if _is_on(said.status.get("slave_running", "")) and not _is_on(variables.get("read_only", "")):
        why = "the server applies another server's changes, and takes writes: two primaries give the same ids"
        yield Finding(why, "give the shard the primary's url, or end this server's replication", wrong=False)
    if _is_on(variables.get("wsrep_on", "")):
        return
    if variables.get("group_replication_group_name"):
        if variables.get("group_replication_consistency") == "EVENTUAL":
            why = "group_replication_consistency is EVENTUAL: after a fail-over the next primary shows an older state"
            mend = "SET GLOBAL group_replication_consistency = BEFORE_ON_PRIMARY_FAILOVER, and in the configuration"
            yield Finding(why, mend, wrong=False)
        return
    if _is_on(variables.get("log_bin", "")):
        yield from _binary_log(said)


def _binary_log(said: Said) -> Iterator[Finding]:
    role = _NAMES[said.product]
    semi_sync = f"rpl_semi_sync_{role}"
    if not _is_on(said.variables.get(f"{semi_sync}_enabled", "")):
        mend = f"INSTALL PLUGIN rpl_semi_sync_{role} SONAME 'semisync_{role}.so', then " if role == "source" else ""
        mend = f"{mend}SET GLOBAL {semi_sync}_enabled = ON, and the same for the replicas; see docs/run/failover.md"
        if said.replicas:
            many = f"{said.replicas} replicas are" if said.replicas > 1 else "a replica is"
            yield Finding(f"{many} attached without semi-synchronous replication: {_LOSS}", mend, wrong=False)
        elif said.replicas is None:
            why = "semi-synchronous replication is off, and this account may not see whether replicas are attached"
            yield Finding(why, f"GRANT REPLICATION SLAVE to it, or, with replicas, {mend}", wrong=False)
        return
    if not _is_on(said.status.get(f"{semi_sync}_status", "")):
        why = f"semi-synchronous replication is on, but no replica answers, so commits do not wait: {_LOSS}"
        yield Finding(why, "start the replicas, and switch their semi-synchronous mode on", wrong=False)
    point = said.variables.get(f"{semi_sync}_wait_point", "")
    if point != "AFTER_SYNC":
        why = f"{semi_sync}_wait_point is {point}: a host that connects again may rely on a commit that no replica has"
        yield Finding(why, f"SET GLOBAL {semi_sync}_wait_point = AFTER_SYNC{_KEEP}", wrong=False)
    timeout_ms = int(said.variables.get(f"{semi_sync}_timeout", "0"))
    if timeout_ms < _LONG_MS:
        why = f"{semi_sync}_timeout is {timeout_ms} ms: commits no longer wait if no replica answers for this time"
        yield Finding(why, f"SET GLOBAL {semi_sync}_timeout = 4294967295{_KEEP}", wrong=False)


def _is_on(value: str) -> bool:
    return value.upper() in ("ON", "1", "YES")
