from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.store import STORES, MemoryStore, RedisStore, open_store
from specdec.core.errors import ConfigError
from specdec.edge.store_address import parse_address


def open_(url: str, ttl: float = 60.0, lease: float = 10.0, deadline: float = 1.0) -> object:
    return open_store(url, ttl=ttl, lease=lease, deadline=deadline)


@pytest.mark.parametrize("url", ["mongodb://h", "redis", "", "://", "rediss+sentinel://h/s", "localhost:6379"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_(url)
    assert all(f"{scheme}://" in str(caught.value) for scheme in STORES)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("memory://?max_session=3", "max_sessions"),
        ("memory://?max_sessions=many", "whole number"),
        ("redis://", "host:port"),
        ("redis://h:port/0", "host:port"),
        ("redis://h:0", "host:port"),
        ("redis://a:1,b:2", "1 to 1"),
        ("redis://h/zero", "number"),
        ("redis://h?max_connections=0", "at least 1"),
        ("redis://h?ssl_ca_certs=x.pem", "rediss://"),
        ("rediss://h?ssl_ca_certs=no-such.pem", "PEM file"),
        ("redis+sentinel://h:1,i:2", "SERVICE"),
        ("redis+cluster://h:1?wait_replicas=1", "max_connections"),
        ("redis+cluster://h:1?db=1", "max_connections"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_remedy(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_(url)


@pytest.mark.parametrize("times", [{"ttl": 0.0}, {"lease": -1.0}, {"deadline": 0.0}, {"lease": 61.0}])
def test_times_that_cannot_work_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="store"):
        open_("memory://", **times)


@pytest.mark.parametrize(
    "url", ["redis://u:hidden@h:1/0?sentinel_password=hidden", "redis://u:hidden@h:nope/0", "nope://u:hidden@h"]
)
def test_no_refusal_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_(url)
    assert "hidden" not in str(caught.value) + repr(caught.value.value)
    assert "hidden" not in repr(parse_address("redis://u:hidden@h:1/0?sentinel_password=hidden"))


async def test_each_scheme_opens_without_connecting(tmp_path: Path) -> None:
    assert isinstance(open_("memory://"), MemoryStore)
    for url in (
        "redis://user:pass@[::1]:6380/3?max_connections=5&wait_replicas=1",
        "rediss://h",
        "redis+sentinel://a:1,b/main?db=2&sentinel_password=x",
        "redis+cluster://a:1,b:2",
    ):
        store = open_(url)
        assert isinstance(store, RedisStore)
        await store.close()


def test_an_address_is_read_percent_decoded_with_default_ports() -> None:
    address = parse_address("redis+sentinel://us%40er:p%3Aw%2F@a:1,[::1],c/ma%20in?db=2")
    assert address.hosts == (("a", 1), ("::1", 26379), ("c", 26379))
    assert (address.username, address.password, address.path) == ("us@er", "p:w/", "ma in")
    assert str(address) == "redis+sentinel://a:1,::1:26379,c:26379"
