"""Where the pages are: the public address, and the names and ports of this machine.

Standard library only: the settings and the supervisor read it before anything else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import re
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# As a Host header names them; an address without a name is a name too.
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*\.?", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_SIOCGIFADDR = 0x8915


class BadAddress(ValueError):
    """The text is no address that the pages can have; it says why and what to write."""


@dataclass(frozen=True, kw_only=True)
class PublicAddress:
    """The address under which people reach the pages.

    Attributes:
        scheme: ``http`` or ``https``.
        host: The name as a Host header has it, without port: lower case, IPv6 in brackets.
        port: 1 to 65535.
    """

    scheme: str
    host: str
    port: int

    @property
    def secure(self) -> bool:
        """Return whether people reach it by TLS."""
        return self.scheme == "https"

    @property
    def netloc(self) -> str:
        """Return host and port, without the port that goes without saying."""
        usual = self.port == _PORTS[self.scheme]
        return self.host if usual else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """Return the address without a path, such as ``https://audit.example.org``."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine reaches it."""
        return is_loopback(self.host)


def public_address(text: str) -> PublicAddress:
    """Return the address that ``text`` names, such as ``https://audit.example.org``.

    Raises:
        BadAddress: it names none, or more than scheme, host and port.
    """
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    if not text.isprintable() or " " in text:
        raise BadAddress(f"{shown!r} holds a space or an unprintable character")
    if "://" not in text:
        raise BadAddress(f"{shown!r} lacks its scheme; write https://{shown.strip('/') or 'NAME'}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadAddress(f"{shown!r} is no address: {error}") from error
    if parts.scheme not in _PORTS:
        raise BadAddress(f"{shown!r} starts with {parts.scheme}://; write https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("the address holds a user name or password; leave them out")
    if "?" in text or "#" in text:
        raise BadAddress(f"{shown!r} goes on after its host; write scheme and host alone")
    if parts.path.strip("/"):
        raise BadAddress(
            f"{shown!r} has the path {parts.path}: the pages can't live below a path. Give them a "
            f"host of their own, such as {parts.scheme}://audit.{parts.hostname or 'example.org'}"
        )
    if port == 0:
        raise BadAddress(f"{shown!r} has port 0; ports go from 1 to 65535")
    return PublicAddress(
        scheme=parts.scheme, host=_host(parts, shown), port=port or _PORTS[parts.scheme]
    )


def _host(parts: SplitResult, shown: str) -> str:
    name = parts.hostname or ""
    if parts.netloc.startswith("["):
        return f"[{_public_ip(name, shown)}]"
    with contextlib.suppress(UnicodeError):
        name = name.encode("idna").decode() if not name.isascii() else name
    if not _NAME.fullmatch(name):
        raise BadAddress(f"{shown!r} has no host name; write it like https://audit.example.org")
    if re.fullmatch(r"[0-9.]+", name):
        return _public_ip(name, shown)
    return name.rstrip(".")


def _public_ip(name: str, shown: str) -> str:
    try:
        address = ipaddress.ip_address(name)
    except ValueError as error:
        raise BadAddress(f"{shown!r} is no address: {error}") from error
    if address.is_unspecified:
        raise BadAddress(f"{shown!r} names every address of a machine; write the one people use")
    return str(address)


def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address, is reached from this machine alone."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether listening on ``host`` means every address of the machine."""
    return host.strip("[]") in ("", "0.0.0.0", "::")


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


# --- this machine -------------------------------------------------------------


def own_names() -> list[str]:
    """Return what this machine is called: loopback, its names and its addresses.

    As Host headers have them. The first after the loopback names is the best for others to use.
    """
    names = [socket.gethostname().lower(), socket.getfqdn().lower()]
    found = [*LOOPBACK_NAMES, *own_addresses(), *(n for n in names if _NAME.fullmatch(n))]
    return list(dict.fromkeys(found))


def own_addresses() -> list[str]:
    """Return the addresses of this machine but loopback; the one of its default route first."""
    found = [_route_address(socket.AF_INET, "192.0.2.1"), *_interface_addresses()]
    found += [_route_address(socket.AF_INET6, "2001:db8::1"), *_interface_addresses_6()]
    return list(dict.fromkeys(f"[{a}]" if ":" in a else a for a in found if a and _counts(a)))


def _counts(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _route_address(family: int, towards: str) -> str:
    """Return the address this machine would send from; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
    return ""


def _interface_addresses() -> list[str]:
    if sys.platform != "linux":
        return []
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _interface_addresses_6() -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    return [str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines]


class NotFree(Exception):
    """Nothing can listen there; the text says why and what to do."""


def listening_port(*, host: str, port: int | None, first: int = 8000) -> int:
    """Return ``port`` if it can be listened on, or the first free one from ``first`` on.

    Raises:
        NotFree: it is taken or not allowed, or ``host`` is no address of this machine.
    """
    wanted: Sequence[int] = [port] if port else range(first, first + 100)
    for number in wanted:
        fault = _listening_fault(host, number)
        if fault is None:
            return number
        if port or fault != errno.EADDRINUSE:
            raise NotFree(_why_not(host, number, fault))
    raise NotFree(f"no free port between {first} and {first + 99} on {host}; name one with --port")


def _listening_fault(host: str, port: int) -> int | None:
    """Return why nothing can listen there, as an errno, or None."""
    try:
        places = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return errno.EADDRNOTAVAIL
    family, kind, protocol, _, place = places[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno
    return None


def _why_not(host: str, port: int, fault: int) -> str:
    place = host_and_port(host, port)
    if fault == errno.EADDRINUSE:
        return f"{place} is taken by another program; name another port, or leave --port out"
    if fault == errno.EACCES:
        return (
            f"{place}: ports below 1024 are the system's. Leave --port out and put a proxy in "
            "front (docs/hosting.md)"
        )
    return f"{host!r} is no address of this machine; give one of {', '.join(own_names())}"
