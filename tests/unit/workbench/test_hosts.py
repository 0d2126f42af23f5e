"""The public address and what this machine listens on."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.kernel import hosts
from workbench.kernel.hosts import (
    BadAddress,
    NotFree,
    host_and_port,
    is_loopback,
    is_wildcard,
    listening_port,
    own_names,
    public_address,
)


@pytest.mark.parametrize(
    ("text", "origin", "host"),
    [
        ("https://audit.example.org", "https://audit.example.org", "audit.example.org"),
        ("https://audit.example.org/", "https://audit.example.org", "audit.example.org"),
        ("HTTPS://Audit.Example.ORG:443", "https://audit.example.org", "audit.example.org"),
        ("https://audit.example.org.", "https://audit.example.org", "audit.example.org"),
        ("https://audit.example.org:8443", "https://audit.example.org:8443", "audit.example.org"),
        ("http://localhost:8000", "http://localhost:8000", "localhost"),
        ("http://192.0.2.7:80", "http://192.0.2.7", "192.0.2.7"),
        ("http://[2001:DB8::7]:8000/", "http://[2001:db8::7]:8000", "[2001:db8::7]"),
        ("https://bücher.example", "https://xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_public_address_is_read_into_what_the_settings_need(
    text: str, origin: str, host: str
) -> None:
    address = public_address(text)
    assert (address.origin, address.host) == (origin, host)
    assert address.secure == origin.startswith("https")
    # It reads back as itself.
    assert public_address(address.origin) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("audit.example.org", "write https://audit.example.org"),
        ("", "lacks its scheme; write https://NAME"),
        ("ftp://audit.example.org", "write https:// or http://"),
        ("javascript://audit.example.org", "write https:// or http://"),
        ("https://", "has no host name"),
        ("https://audit_example.org", "has no host name"),
        ("https://-audit.example.org", "has no host name"),
        ("https://*.example.org", "has no host name"),
        ("https://audit.example.org/workbench", "such as https://audit.audit.example.org"),
        ("https://example.org/a", "can't live below a path"),
        ("https://audit.example.org?x=1", "write scheme and host alone"),
        ("https://audit.example.org#x", "write scheme and host alone"),
        ("https://audit.example.org/?", "write scheme and host alone"),
        ("https://lee:secret@audit.example.org", "user name or password"),
        ("https://audit.example.org:0", "ports go from 1 to 65535"),
        ("https://audit.example.org:65536", "is no address"),
        ("https://audit.example.org:http", "is no address"),
        ("https://[::1", "is no address"),
        ("https://[audit]", "is no address"),
        ("https://256.1.1.1", "is no address"),
        ("https://0.0.0.0", "write the one people use"),
        ("https://[::]", "write the one people use"),
        ("https://audit.example.org\n", "unprintable"),
        ("https://audit example.org", "space"),
    ],
)
def test_a_bad_address_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(BadAddress) as refused:
        public_address(text)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = public_address(text)
    except BadAddress:
        return
    # What is accepted is safe in a header and in a list of allowed hosts.
    assert set(address.origin) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-:/[]")
    assert public_address(address.origin) == address


def test_loopback_and_wildcard_are_told_from_the_rest() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.0.2.7", "localhost.example.org", ""]))
    assert all(map(is_wildcard, ["", "0.0.0.0", "::", "[::]"]))
    assert not any(map(is_wildcard, ["127.0.0.1", "::1", "localhost"]))
    assert host_and_port("::1", 80) == host_and_port("[::1]", 80) == "[::1]:80"
    assert host_and_port("localhost", 80) == "localhost:80"


def test_this_machines_names_are_loopback_and_its_own() -> None:
    names = own_names()
    assert names[:3] == ["localhost", "127.0.0.1", "[::1]"]
    assert socket.gethostname().lower() in names
    assert len(names) == len(set(names))
    assert not {"0.0.0.0", "*", ""} & set(names)


def test_a_named_port_that_is_taken_is_an_error_and_an_unnamed_one_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotFree, match=f"127.0.0.1:{port} is taken by another program"):
            listening_port(host="127.0.0.1", port=port)
        assert listening_port(host="127.0.0.1", port=None, first=port) > port
    assert listening_port(host="127.0.0.1", port=port) == port


def test_a_host_that_is_not_this_machines_is_refused_with_those_that_are() -> None:
    # 203.0.113.0/24 is for documentation: it is nobody's.
    for host in ("203.0.113.9", "no-such-host.invalid"):
        with pytest.raises(NotFree, match="is no address of this machine; give one of localhost"):
            listening_port(host=host, port=None)


def test_a_port_of_the_systems_is_refused_with_the_way_around(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import errno

    monkeypatch.setattr(hosts, "_listening_fault", lambda host, port: errno.EACCES)
    with pytest.raises(NotFree, match=r"put a proxy in front \(docs/hosting.md\)"):
        listening_port(host="127.0.0.1", port=80)
