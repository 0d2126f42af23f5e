"""Where a request comes from."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from django.conf import settings
from django.http import HttpRequest

# One IPv6 customer has at least this many addresses to choose from.
_V6_PREFIX = 64


def client_address(request: HttpRequest) -> str:
    """Return the address that a request came from, as what one limit holds for.

    Every proxy adds the address that it was called from at the end of X-Forwarded-For.
    With ``TRUSTED_PROXIES`` = n the n-th entry from the end was written by the outermost
    proxy of ours; everything before it is the client's own invention. With 0 the header
    means nothing. An IPv6 address stands for its /64.

    Returns:
        An address, a network, or an empty text where none is known (a Unix socket).
    """
    given = request.META.get("REMOTE_ADDR", "")
    hops = [hop.strip() for hop in request.headers.get("X-Forwarded-For", "").split(",")]
    trusted = settings.TRUSTED_PROXIES
    if 0 < trusted <= len(hops) and _is_address(hops[-trusted]):
        given = hops[-trusted]
    if not _is_address(given):
        return ""
    address = ip_address(given)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ip_network((int(address), _V6_PREFIX), strict=False))
    return str(address)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
