from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import trustme

from tests.coordinator.store.kinds import Kind, MemoryKind, RedisKind
from tests.coordinator.store.proxy import proxied
from tests.redis_server import ClusterGroup, RedisProcess, SentinelGroup, shared_redis


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with shared_redis() as url:
        yield url


@pytest.fixture(scope="session")
def sentinel_group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group


@pytest.fixture(scope="session")
def cluster_group() -> Iterator[ClusterGroup]:
    with ClusterGroup() as group:
        yield group


@pytest.fixture(scope="session")
def tls_upstream() -> Iterator[RedisProcess]:
    with RedisProcess() as process:
        yield process


@pytest.fixture
def server() -> Iterator[RedisProcess]:
    """A server of this test alone, to be hurt."""
    with RedisProcess() as process:
        yield process


@pytest.fixture
def server_kind(server: RedisProcess) -> RedisKind:
    return RedisKind("redis", server.url, lambda: [server.admin])


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 in one PEM file, and beside it (.crt) the authority that signed it."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(path))
    authority.cert_pem.write_to_path(str(path.with_suffix(".crt")))
    return path


@pytest.fixture
def name() -> str:
    return f"test-{uuid4()}"


@pytest.fixture(params=["memory", "redis", "rediss", "sentinel", "cluster"])
async def kind(request: pytest.FixtureRequest) -> AsyncIterator[Kind]:
    """Each kind of store; servers start when the first test needs them."""
    name = request.param
    if name == "memory":
        yield MemoryKind()
        return
    if name == "sentinel":
        group: SentinelGroup = request.getfixturevalue("sentinel_group")
        yield RedisKind(name, group.url, lambda: [group.master.admin])
    elif name == "cluster":
        cluster: ClusterGroup = request.getfixturevalue("cluster_group")
        yield RedisKind(name, cluster.url, lambda: [node.admin for node in cluster.nodes])
    elif name == "rediss":
        upstream: RedisProcess = request.getfixturevalue("tls_upstream")
        pem: Path = request.getfixturevalue("certificate")
        async with proxied(upstream.port, pem) as proxy:
            url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={pem.with_suffix('.crt')}"
            yield RedisKind(name, url, lambda: [upstream.admin])
    else:
        url = request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url, decode_responses=True) as admin:
            yield RedisKind(name, url, lambda: [admin])
