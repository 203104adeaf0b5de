"""Who is let in by certificate, and who is believed; with real certificates of a test authority."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trustme

from protos import generation_pb2_grpc
from specdec.core.errors import ConfigError, Unavailable
from specdec.edge.client import Client
from specdec.edge.server import GrpcServer
from specdec.edge.tls import Tls, read_tls
from tests.edge.scripted_generation import ScriptedGeneration


@dataclass
class Authority:
    """ca: file of its certificate. of: what one with this name shows, and believes."""

    ca: Path
    inner: trustme.CA

    def of(self, name: str) -> Tls:
        issued = self.inner.issue_cert(name)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return Tls(chain, issued.private_key_pem.bytes(), self.ca.read_bytes())


def authority(folder: Path, name: str) -> Authority:
    made, file = trustme.CA(), folder / f"{name}.pem"
    made.cert_pem.write_to_path(str(file))
    return Authority(file, made)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("strangers"), "strangers")


@asynccontextmanager
async def served(tls: Tls, *, clients: bool) -> AsyncIterator[str]:
    register = partial(
        generation_pb2_grpc.add_GenerationServiceServicer_to_server, ScriptedGeneration(lambda request: [])
    )
    services = {"specdec.v1.GenerationService": register}
    async with GrpcServer(services, host="127.0.0.1", port=0, tls=tls, clients=clients) as server:
        yield f"127.0.0.1:{server.port}"


async def reaches(address: str, tls: Tls | None) -> bool:
    async with Client(address, tls=tls) as client:
        try:
            return (await client.info()).model_name == "scripted"
        except Unavailable:
            return False


async def test_only_whoever_believes_the_authority_and_finds_the_name_connects(
    ours: Authority, strangers: Authority
) -> None:
    believing = Tls(authority=ours.ca.read_bytes())
    async with served(ours.of("127.0.0.1"), clients=False) as address:
        assert await reaches(address, believing)
        assert not await reaches(address, Tls(authority=strangers.ca.read_bytes()))
        assert not await reaches(address, None), "nothing is served in clear"
    async with served(ours.of("another.name"), clients=False) as address:
        assert not await reaches(address, believing)


async def test_a_replica_takes_only_whom_its_authority_has_signed(ours: Authority, strangers: Authority) -> None:
    stranger = strangers.of("coordinator")
    async with served(ours.of("127.0.0.1"), clients=True) as address:
        assert await reaches(address, ours.of("coordinator"))
        assert not await reaches(address, Tls(authority=ours.ca.read_bytes())), "no certificate at all"
        forged = Tls(stranger.certificate, stranger.key, ours.ca.read_bytes())
        assert not await reaches(address, forged), "one of another authority"


def test_files_become_credentials_or_a_sentence(ours: Authority, tmp_path: Path) -> None:
    own = ours.of("x")
    assert own.certificate is not None and own.key is not None
    certificate, key, empty = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "empty.pem"
    certificate.write_bytes(own.certificate)
    key.write_bytes(own.key)
    empty.touch()
    assert read_tls(None, None, None) is None
    assert read_tls(str(certificate), str(key), str(ours.ca)) == own
    assert own.key.decode() not in repr(own), "a key is never shown"
    for wrong in (
        (str(certificate), None, None),
        (None, str(key), None),
        (None, None, str(tmp_path / "missing.pem")),
        (None, None, str(empty)),
    ):
        with pytest.raises(ConfigError):
            read_tls(*wrong)
