"""Users that a proxy in front of the console has signed in. Pure but for the reading of the file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import NamedTuple

from foqs.checks import printable
from foqs.errors import Forbidden, Invalid

OTHER_USERS = "*"
"""In place of a user's name in the file: the token of all users without one of their own."""


class Proxy(NamedTuple):
    """`header`: has the name of the user, in lower case. `networks`: of the proxy. `tokens`: by user."""

    header: str
    networks: tuple[IPv4Network | IPv6Network, ...]
    tokens: Mapping[str, str]

    def user_of(self, peer: str, named: Sequence[str]) -> tuple[str, str]:
        """Return the user of a request from the address `peer`, and the user's token. `named`: all values of the
        header. Raises Forbidden."""
        if not any(ip_address(peer) in network for network in self.networks):
            raise Forbidden("only the proxy in front of this console may ask it")
        if len(named) > 1:
            raise Forbidden(f"the request has {self.header} more than once: the proxy has to replace it")
        user = "".join(named)
        if not user:
            raise Forbidden(f"the proxy named no user: it did not send {self.header}")
        token = self.tokens.get(user) or self.tokens.get(OTHER_USERS)
        if token is None:
            raise Forbidden(f"the console has no token for the user {printable(user)}")
        return user, token


def read_proxy(header: str, addresses: Iterable[str], tokens_file: Path) -> Proxy:
    """Return the proxy that the configuration describes. Raises Invalid."""
    networks = []
    for address in addresses:
        try:
            networks.append(ip_network(address, strict=False))
        except ValueError:
            raise Invalid(f"console.proxy_addresses: {address} is neither an IP address nor a network") from None
    try:
        tokens = tomllib.loads(tokens_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"console.tokens_file: {tokens_file}: {error.strerror}") from error
    except ValueError as error:
        raise Invalid(f"console.tokens_file: {tokens_file}: {error}") from None
    for user, token in tokens.items():
        if not isinstance(token, str) or not token or token.startswith("@"):
            raise Invalid(f"console.tokens_file: {tokens_file}: the token of {printable(user)} is no token")
    return Proxy(header.lower(), tuple(networks), tokens)
