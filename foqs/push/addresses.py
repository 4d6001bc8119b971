"""Which endpoints may be reached: by https, at globally routable unicast addresses; the configuration lists exceptions.

The check is of the address that a connection uses. A name is resolved first, and a URL may hold an address itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from yarl import URL

from foqs.bounds import MOST_PORT
from foqs.errors import Invalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
PLAIN = "http://"
"""In front of an exception: it holds without TLS, too."""
_LISTED = "[push] allow lists exceptions"
_FORMS = f"give a network (10.1.0.0/16), an address, or host:port; with {PLAIN} in front also without TLS"
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_NOT_GLOBAL = tuple(
    (ip_network(network), word)
    for word, networks in (
        ("unspecified", ("0.0.0.0/8", "::/128")),
        ("a loopback address", ("127.0.0.0/8", "::1/128")),
        ("link-local, as are metadata services of clouds", ("169.254.0.0/16", "fe80::/10")),
        ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
        ("shared by customers of a provider", ("100.64.0.0/10",)),
        ("for documentation", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
        ("for benchmarks", ("198.18.0.0/15", "2001:2::/48")),
        ("for protocols", ("192.0.0.0/24", "192.88.99.0/24", "2001::/23")),
        ("of a platform, which answers virtual machines alone", ("168.63.129.16/32",)),
        ("multicast", ("224.0.0.0/4", "ff00::/8")),
        ("reserved", ("240.0.0.0/4",)),
    )
    for network in networks
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""Of IPv6, nothing else is assigned as global unicast."""
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_TEREDO = IPv6Network("2001::/32")
_SIX_TO_FOUR = IPv6Network("2002::/16")


class Refused(Invalid):
    """An endpoint that may not be reached."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. `host` is in lower case, without brackets; `address` is set if the URL has one, not a name."""

    scheme: str
    host: str
    port: int
    address: Address | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint_of(url: str) -> Endpoint:
    """Return where requests to `url` go. Raises Refused."""
    try:
        parsed = URL(url)
        host, port = parsed.raw_host, parsed.port
    except (ValueError, UnicodeError):
        raise Refused("the URL cannot be read") from None
    if parsed.scheme not in ("http", "https"):
        raise Refused("the URL begins with neither https:// nor http://")
    if parsed.raw_user is not None or parsed.raw_password is not None:
        raise Refused("the URL has a user or a password: give them in a header")
    if not host or not host.strip("."):
        raise Refused("the URL has no host")
    if port is None or not 0 < port <= MOST_PORT:
        raise Refused(f"the port is not from 1 to {MOST_PORT}")
    address = literal(host)
    return Endpoint(parsed.scheme, host.lower().rstrip(".") if address is None else str(address), port, address)


def literal(host: str) -> Address | None:
    """Return the address that `host` is; None for a name. Raises Refused for an address in an unusual form: programs
    read such a form differently.

    >>> literal("192.0.2.1"), literal("example.org")
    (IPv4Address('192.0.2.1'), None)
    >>> literal("0x7f.1")
    Traceback (most recent call last):
    foqs.push.addresses.Refused: 0x7f.1 is an unusual form of an IPv4 address: write four decimal numbers
    """
    try:
        found = ip_address(host)
    except ValueError:
        if ":" in host:
            raise Refused(f"{host} is not an IPv6 address") from None
        if _NUMBER.fullmatch(host.lower().rstrip(".").rpartition(".")[2]):
            raise Refused(f"{host} is an unusual form of an IPv4 address: write four decimal numbers") from None
        return None
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        raise Refused(f"{host} names a network interface")
    return found


def unmapped(address: Address) -> tuple[Address, ...]:
    """Return the addresses that packets to `address` reach: IPv4 addresses, where it holds them, else itself.

    >>> unmapped(ip_address("::ffff:10.0.0.1")), unmapped(ip_address("2002:7f00:1::"))
    ((IPv4Address('10.0.0.1'),), (IPv4Address('127.0.0.1'),))
    """
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    number = int(address)
    if address in _NAT64 or (address in _COMPATIBLE and number > 1):
        return (IPv4Address(number & 0xFFFFFFFF),)
    if address in _SIX_TO_FOUR:
        return (IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if address in _TEREDO:  # the server, and the client, whose bits are inverted
        return (IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(number & 0xFFFFFFFF ^ 0xFFFFFFFF))
    return (address,)


def why_not_global(address: Address) -> str | None:
    """Return what keeps an unmapped address from being global unicast.

    >>> why_not_global(ip_address("127.0.0.1"))
    'a loopback address'
    """
    for network, word in _NOT_GLOBAL:
        if address in network:
            return word
    return "not a global unicast address" if address.version == 6 and address not in _GLOBAL_V6 else None


@dataclass(frozen=True)
class Allow:
    """The exceptions. A network holds for addresses in it, on each port; `host:port` for what that URL's host is or
    resolves to, whatever address that is."""

    networks: tuple[tuple[Network, bool], ...] = ()
    """Each with True if it holds without TLS, too."""
    places: tuple[tuple[str, int, bool], ...] = ()

    @classmethod
    def parse(cls, entries: Sequence[str]) -> Allow:
        """Raises Invalid with every wrong entry, one a line."""
        networks: list[tuple[Network, bool]] = []
        places: list[tuple[str, int, bool]] = []
        errors = []
        for entry in entries:
            plain = entry.startswith(PLAIN)
            text = entry.removeprefix(PLAIN)
            try:
                if (network := _network(text)) is not None:
                    networks.append((network, plain))
                else:
                    places.append((*_place(text), plain))
            except Invalid as error:
                errors.append(f"{entry!r}: {error.message}")
        if errors:
            raise Invalid("\n".join(errors))
        return cls(tuple(networks), tuple(places))

    def check(self, endpoint: Endpoint) -> None:
        """Raise Refused for an endpoint that no address could make reachable."""
        if endpoint.address is not None:
            self.check_address(endpoint, endpoint.address)
        elif endpoint.scheme == "http" and not self._by_place(endpoint) and not any(http for _, http in self.networks):
            raise Refused(f"{endpoint}: https only; {_LISTED}")

    def check_address(self, endpoint: Endpoint, address: Address) -> None:
        """Raise Refused unless a connection to `endpoint` may use `address`."""
        if self._by_place(endpoint):
            return
        for real in unmapped(address):
            within = [http for network, http in self.networks if real in network]
            word = why_not_global(real)
            shown = f"{real}" if real == address else f"{address} ({real})"
            if endpoint.host != str(address):
                shown = f"{endpoint.host} is at {shown}, which"
            if word is not None and not within:
                raise Refused(f"{shown} is {word}: only global addresses are reached; {_LISTED}")
            if endpoint.scheme == "http" and not any(within):
                raise Refused(f"{shown} is reached by https only; {_LISTED}")

    def _by_place(self, endpoint: Endpoint) -> bool:
        return any(
            (host, port) == (endpoint.host, endpoint.port) and (http or endpoint.scheme == "https")
            for host, port, http in self.places
        )


def _network(text: str) -> Network | None:
    """Return None for a text that is no network. Raises Invalid for a wrong one."""
    try:
        found = ip_network(text)
    except ValueError:
        if "/" not in text:
            return None
        raise Invalid(f"this is no network; {_FORMS}") from None
    if isinstance(found, IPv6Network) and unmapped(found.network_address) != (found.network_address,):
        raise Invalid("this network holds IPv4 addresses: give the IPv4 network")
    return found


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host) or not port.isascii() or not port.isdigit():
        raise Invalid(_FORMS)
    found = endpoint_of(f"https://{text}/")
    if found.port != int(port) or "?" in text or "#" in text:
        raise Invalid(_FORMS)
    return found.host, found.port
