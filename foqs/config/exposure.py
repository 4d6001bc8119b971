"""Checks a host that other machines can reach for TLS and for access control."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.config.load import Config


def is_loopback(host: str) -> bool:
    """True for a loopback address, and for the name localhost."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def exposed(config: Config) -> dict[str, str]:
    """Return the dangers of this configuration by the key that is missing. Empty on a loopback address."""
    if is_loopback(config.server.host):
        return {}
    found = {}
    if config.tls is None:
        found["tls"] = "there is no [tls]: the network can read and change all traffic, tokens too"
    certified = config.tls is not None and config.tls.client_certificates == "required"
    if (config.auth is None or config.auth.principals_file is None) and not certified:
        found["auth"] = (
            "there is no auth.principals_file: every client that reaches the port may read, take and delete items"
        )
    return found
