"""Sections about callers: encryption, rights and quotas."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from foqs.config.fields import Secret, Section, refuse
from foqs.quota import Quota


class TlsSection(Section):
    """TLS on the Thrift port and between hosts. A host shows its certificate as a client of other hosts, too."""

    cert_file: Path = Field(description="Certificate (PEM), followed by its intermediate certificates.")
    key_file: Path = Field(description="Private key (PEM) of cert_file.")
    ca_file: Path | None = Field(
        default=None,
        description="Certificate authorities (PEM) of clients and of other hosts. Not set: for hosts, the system's.",
    )
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none", description="Whether clients must show a certificate from an authority in ca_file."
    )

    @model_validator(mode="after")
    def _verifiable(self) -> TlsSection:
        refuse({"client_certificates needs ca_file": self.client_certificates != "none" and self.ca_file is None})
        return self


class AuthSection(Section):
    """Rights of callers. Without principals_file every caller may do everything."""

    principals_file: Path | None = Field(
        default=None, description="This file names the principals and their rights (docs/security.md)."
    )
    cluster_secret: Secret | None = Field(
        default=None,
        min_length=32,
        description="Hosts prove with this secret that they belong to the cluster. Give all hosts the same one.",
    )


class QuotaKeys(Section):
    """A quota of a namespace, for all hosts together."""

    enqueues_per_second: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Most items enqueued in a second. Not set: no limit."
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Most items enqueued at once after a pause. Not set: enqueues_per_second.",
    )
    stored_items: int | None = Field(
        default=None, ge=1, description="Most items stored, in any state. Not set: no limit."
    )

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> QuotaKeys:
        refuse({"burst needs enqueues_per_second": self.burst is not None and self.enqueues_per_second is None})
        return self

    def quota(self) -> Quota | None:
        if self.enqueues_per_second is None and self.stored_items is None:
            return None
        return Quota(self.enqueues_per_second, self.burst or self.enqueues_per_second or 0, self.stored_items)


class QuotasSection(QuotaKeys):
    """Quotas of namespaces. Give all hosts of a cluster the same."""

    namespaces: dict[str, QuotaKeys] = Field(
        default={},
        description="Quotas by name of the namespace. A namespace named here has none of the quotas above.",
    )
