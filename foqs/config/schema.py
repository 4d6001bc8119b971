"""The sections of foqs.toml. Units are in the names. Defaults suit a host with a few shards and 400 MB of memory.

The host reads a `Live` key each time it uses it, so the key can change while requests are in flight. Other keys cannot:
values on which all hosts must agree (`confirm_ms`, frames), settings of open sockets, sessions and databases, and the
sizes of memory that is allocated at the start.
"""

from foqs.config.access_sections import AuthSection, QuotaKeys, QuotasSection, TlsSection
from foqs.config.host_sections import (
    ADMIN_DISTANCE,
    AdminSection,
    BreakerSection,
    HostSection,
    LimitsSection,
    LogSection,
    ServerSection,
)
from foqs.config.storage_sections import ShardSection, StoreSection, ZookeeperSection

__all__ = [
    "ADMIN_DISTANCE",
    "AdminSection",
    "AuthSection",
    "BreakerSection",
    "HostSection",
    "LimitsSection",
    "LogSection",
    "QuotaKeys",
    "QuotasSection",
    "ServerSection",
    "ShardSection",
    "StoreSection",
    "TlsSection",
    "ZookeeperSection",
]
