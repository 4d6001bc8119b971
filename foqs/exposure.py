"""Whether a host can be reached from other machines, and what it lacks then."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.config import Config


def is_loopback(host: str) -> bool:
    """Of an address, or the one name that is one everywhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def exposed(config: Config) -> dict[str, str]:
    """By the key that is missing, what may happen: beyond the machine itself, whoever reaches the port reads and
    changes everything. Empty where nothing is missing."""
    if is_loopback(config.server.host):
        return {}
    found = {}
    if config.tls is None:
        found["tls"] = "no [tls]: what is sent and received, tokens too, can be read and changed on the way"
    certified = config.tls is not None and config.tls.client_certificates == "required"
    if (config.auth is None or config.auth.principals_file is None) and not certified:
        found["auth"] = "no auth.principals_file: whoever reaches the port may read, take and delete every item"
    return found
