"""The health command, as an orchestrator runs it beside the process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import trustme

from specdec.edge.server import GrpcServer
from specdec.edge.tls import Tls


async def asked(port: int, *flags: str, **environment: str) -> tuple[int, str]:
    """Exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "specdec.edge.health", *flags),
        env={**os.environ, "PORT": str(port), **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_it_tells_a_process_that_serves_from_one_that_does_not() -> None:
    async with GrpcServer({"some.Service": lambda server: None}, host="127.0.0.1", port=0) as server:
        code, said = await asked(server.port)
        assert code == 1 and "NOT_SERVING" in said
        await server.set_serving(True)
        assert await asked(server.port) == (0, "")
        assert await asked(server.port, "--health-service", "some.Service") == (0, "")
        code, said = await asked(server.port, "--health-service", "another.Service")
        assert code == 1 and "NOT_FOUND" in said
    code, said = await asked(server.port, "--health-timeout", "0.5")
    assert code == 1 and "DEADLINE_EXCEEDED" in said


async def test_it_shows_the_certificate_that_the_process_itself_shows(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("replica.internal")
    files = {name: tmp_path / f"{name}.pem" for name in ("tls_certificate", "tls_key", "tls_ca")}
    files["tls_certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    files["tls_key"].write_bytes(issued.private_key_pem.bytes())
    files["tls_ca"].write_bytes(authority.cert_pem.bytes())
    tls = Tls(*(file.read_bytes() for file in files.values()))
    environment = {name.upper(): str(file) for name, file in files.items()}
    async with GrpcServer({}, host="127.0.0.1", port=0, tls=tls, clients=True) as server:
        await server.set_serving(True)
        assert await asked(server.port, HEALTH_TLS_NAME="replica.internal", **environment) == (0, "")
        code, _ = await asked(server.port, HEALTH_TLS_NAME="another.internal", **environment)
        assert code == 1
        code, said = await asked(server.port, **{**environment, "TLS_KEY": str(tmp_path / "gone")})
        assert code == 2 and "tls_key" in said


@pytest.mark.parametrize(("port", "word"), [("0", "port"), ("x", "port")])
async def test_a_port_that_cannot_be_is_named(port: str, word: str) -> None:
    code, said = await asked(0, PORT=port)
    assert code == 2 and word in said
