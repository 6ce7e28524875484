from __future__ import annotations

import pytest

from jobd.errors import AddressRefused
from jobd.http.gateway import bind_listener, listener_url


def test_address_in_use_is_refused_by_name() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        with pytest.raises(AddressRefused, match=rf"server.port = {port}: Address already in use"):
            bind_listener("127.0.0.1", port)


def test_address_is_free_at_once_after_its_listener_is_closed() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

    with bind_listener("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("no-such-host.invalid", "name an address of this machine"),
        ("192.0.2.1", "Cannot assign requested address"),
        ("a..b", "name an address of this machine"),
        ("x" * 64, "name an address of this machine"),
        ("nul\0", "name an address of this machine"),
    ],
)
def test_host_that_is_not_this_machines_is_refused(host: str, complaint: str) -> None:
    with pytest.raises(AddressRefused, match=complaint):
        bind_listener(host, 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}"),
        ("localhost", "http://127.0.0.1:{}"),
        ("0.0.0.0", "http://127.0.0.1:{}"),
        ("::1", "http://[::1]:{}"),
        ("::", "http://[::1]:{}"),
    ],
)
def test_url_of_a_listener_is_one_that_a_client_here_can_use(host: str, url: str) -> None:
    try:
        with bind_listener(host, 0) as listener:
            assert listener_url(listener) == url.format(listener.getsockname()[1])
    except AddressRefused:
        if ":" not in host:
            raise
        pytest.skip("this machine has no IPv6")
