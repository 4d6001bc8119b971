"""What `foqs doctor` says about replicas, by what a server says of itself."""

from __future__ import annotations

import pytest

from foqs.store.replication import Said, judge

NAMES = {"MariaDB": "rpl_semi_sync_master", "MySQL": "rpl_semi_sync_source"}
PRODUCTS = pytest.mark.parametrize("product", NAMES)


def said(product: str, *, replicas: int | None = 1, semi_sync: bool = False, **changes: str) -> Said:
    """A primary. `changes` are variables without the prefix of their role, and `status`."""
    prefix, variables, status = NAMES[product], {"log_bin": "ON", "read_only": "OFF"}, {}
    if semi_sync:
        good = {"enabled": "ON", "wait_point": "AFTER_SYNC", "timeout": "4294967295"}
        variables |= {f"{prefix}_{name}": value for name, value in good.items()}
        status[f"{prefix}_status"] = "ON"
    for name, value in changes.items():
        if name == "status":
            status[f"{prefix}_status"] = value
        elif name == "slave_running":
            status[name] = value
        elif name in ("enabled", "wait_point", "timeout"):
            variables[f"{prefix}_{name}"] = value
        else:
            variables[name] = value
    return Said(product, variables, status, replicas)


@PRODUCTS
@pytest.mark.parametrize(
    ("about", "why", "mend"),
    [
        ({}, "a replica is attached without semi-sync", "{prefix}_enabled = ON"),
        ({"replicas": 2}, "2 replicas are attached without", "{prefix}_enabled = ON"),
        ({"replicas": None}, "may not see whether replicas are attached", "GRANT REPLICATION SLAVE"),
        ({"semi_sync": True, "status": "OFF"}, "no replica answers", "start the replicas"),
        ({"semi_sync": True, "wait_point": "AFTER_COMMIT"}, "no replica has", "{prefix}_wait_point = AFTER_SYNC"),
        ({"semi_sync": True, "timeout": "10000"}, "_timeout is 10000 ms", "{prefix}_timeout = 4294967295"),
        ({"log_bin": "OFF", "slave_running": "ON"}, "applies another server's changes", "the primary's url"),
        (
            {"group_replication_group_name": "g", "group_replication_consistency": "EVENTUAL"},
            "shows an older state",
            "BEFORE_ON_PRIMARY_FAILOVER",
        ),
    ],
)
def test_each_way_to_lose_commits_has_a_warning(product: str, about: dict[str, object], why: str, mend: str) -> None:
    (finding,) = judge(said(product, **about))  # type: ignore[arg-type]
    assert why in finding.found
    assert mend.format(prefix=NAMES[product]) in finding.mend
    assert not finding.wrong


@PRODUCTS
@pytest.mark.parametrize(
    "about",
    [
        {"replicas": 0},
        {"semi_sync": True},
        {"log_bin": "OFF"},
        {"wsrep_on": "ON"},
        {"group_replication_group_name": "g", "group_replication_consistency": "BEFORE_ON_PRIMARY_FAILOVER"},
        {"read_only": "ON", "slave_running": "ON", "replicas": 0},
    ],
)
def test_a_server_that_loses_nothing_has_none(product: str, about: dict[str, object]) -> None:
    assert list(judge(said(product, **about))) == []  # type: ignore[arg-type]
