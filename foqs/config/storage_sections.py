"""Sections about the databases and ZooKeeper: the data that outlives a host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from foqs.config.fields import Live, SecretPair, SecretUrl, Section, refuse
from foqs.ids import MAX_SHARD
from foqs.shard_urls import refusal_of

_HOST_PORT = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", re.ASCII)
_ROOT = re.compile(r"(/[\w.~-]+)+", re.ASCII)


class StoreSection(Section):
    """Connections to the shards' databases."""

    connect_timeout_ms: int = Field(default=3_000, ge=100, description="Time-out of a connect.")
    io_timeout_ms: int = Field(default=10_000, ge=100, description="Time-out of a statement.")
    state_dir: Path | None = Field(
        default=None,
        description="A host without a cluster stores the highest ids of its shards in this folder. Not set: "
        "foqs-state, beside foqs.toml.",
    )


class ZookeeperSection(Section):
    """The cluster that this host belongs to."""

    hosts: str = Field(description="host:port of each ZooKeeper server, separated by commas.")
    root: str = Field(default="/foqs", description="The data of the cluster is below this node.")
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        description="After this time without contact, ZooKeeper gives up a host, and its shards move to other hosts.",
    )
    auth_scheme: Literal["digest", "sasl"] | None = Field(
        default=None, description="Scheme of auth_credential; sasl is DIGEST-MD5. Set both keys or neither."
    )
    auth_credential: SecretPair | None = Field(default=None, description="user:password for ZooKeeper.")
    acl: Literal["open", "creator"] = Field(
        default="open",
        description="creator: only this credential can read and change the nodes that this host creates.",
    )
    balance_every_ms: Live[int] = Field(default=60_000, ge=1_000, description="Time between two rounds of balancing.")
    max_moves: Live[int] = Field(default=10, ge=1, description="Most shards that move in one round of balancing.")
    settle_ms: int = Field(
        default=1_000, ge=0, description="A new cluster waits this long for further hosts before it assigns shards."
    )
    handover_ms: int = Field(
        default=5_000, ge=0, description="A request for a shard that is moving waits up to this long for the new owner."
    )
    tls: bool = Field(
        default=False, description="`hosts` are secure client ports. Each certificate must name its host."
    )
    tls_ca_file: Path | None = Field(
        default=None, description="Certificate authorities (PEM), in addition to those of the system."
    )
    tls_cert_file: Path | None = Field(default=None, description="Certificate (PEM) of this host for ZooKeeper.")
    tls_key_file: Path | None = Field(default=None, description="Private key (PEM) of tls_cert_file.")

    @field_validator("hosts")
    @classmethod
    def _host_ports(cls, hosts: str) -> str:
        parts = [part.strip() for part in hosts.split(",")]
        if not all(_HOST_PORT.fullmatch(part) and int(part.rpartition(":")[2]) in range(1, 65_536) for part in parts):
            raise ValueError("not host:port, or several of them separated by commas")
        return ",".join(parts)

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: str) -> str:
        if not _ROOT.fullmatch(root) or {".", "..", "zookeeper"} & set(root.split("/")):
            raise ValueError("not an absolute path such as /foqs")
        return root

    @field_validator("auth_credential")
    @classmethod
    def _user_and_password(cls, credential: str | None) -> str | None:
        if credential is not None and not re.fullmatch(r"[^:]+:.+", credential, re.DOTALL):
            raise ValueError("not user:password")
        return credential

    @model_validator(mode="after")
    def _complete(self) -> ZookeeperSection:
        lone = (self.auth_scheme is None) != (self.auth_credential is None)
        refuse(
            {
                "auth_scheme and auth_credential go together": lone,
                "acl = creator needs auth_scheme and auth_credential": (
                    self.acl == "creator" and self.auth_scheme is None
                ),
                "tls_*_file without tls = true": not self.tls
                and any((self.tls_ca_file, self.tls_cert_file, self.tls_key_file)),
                "tls_cert_file and tls_key_file go together": (self.tls_cert_file is None)
                != (self.tls_key_file is None),
            }
        )
        return self


class ShardSection(Section):
    """A shard of a host without a cluster. In a cluster the shards are in ZooKeeper (`foqs shards add`)."""

    id: int = Field(
        ge=1, le=MAX_SHARD, description="The shard's number. It must never change: it is part of every item's id."
    )
    url: SecretUrl = Field(
        min_length=1, description="SQLAlchemy URL of the shard's database: mysql+pymysql, mysql+mysqldb or sqlite."
    )

    @field_validator("url")
    @classmethod
    def _accepted(cls, url: str) -> str:
        if (why := refusal_of(url)) is not None:
            raise ValueError(why)
        return url
