"""All three services as processes with mutual TLS between them, TLS and keys towards callers."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme

from protos import common_pb2, target_pb2_grpc
from specdec.core.errors import Unauthenticated, Unavailable
from specdec.edge.channel import open_channel
from specdec.edge.cli import main
from specdec.edge.client import Client
from specdec.edge.cluster import free_ports
from specdec.edge.tls import Tls, read_tls
from tests.end_to_end.clusters import PROMPT, cluster, generated, tiny_folder

GREEDY = {"token_ids": PROMPT, "max_tokens": 40, "temperature": 0.0}


def certificates(folder: Path) -> tuple[dict[str, str], Tls]:
    """The environment of every process, and what a caller needs: the authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("specdec.internal", "127.0.0.1")
    files = {name: folder / f"{name.lower()}.pem" for name in ("TLS_CERTIFICATE", "TLS_KEY", "TLS_CA")}
    issued.private_key_pem.write_to_path(str(files["TLS_KEY"]))
    authority.cert_pem.write_to_path(str(files["TLS_CA"]))
    files["TLS_CERTIFICATE"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    tls = read_tls(None, None, str(files["TLS_CA"]))
    assert tls is not None
    return {name: str(file) for name, file in files.items()}, tls


@asynccontextmanager
async def process(module: str, environment: dict[str, str], *flags: str) -> AsyncIterator[int]:
    """Its port."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    child = await asyncio.create_subprocess_exec(*command, env=environment, stderr=DEVNULL)
    try:
        yield port
    finally:
        child.kill()
        await child.wait()


async def once_ready(client: Client) -> None:
    async with asyncio.timeout(100):
        while True:
            try:
                if (await client.info()).ready_drafters:
                    return
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.timeout(240)
async def test_a_secured_cluster_serves_whom_it_knows_and_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder(tmp_path / "model")
    async with cluster(folder, tmp_path / "logs", draft_layers=None) as running, Client(running.address) as client:
        expected, _ = await generated(client, **GREEDY)
    environment, tls = certificates(tmp_path)
    assert main(["key", "caller"]) == 0
    shown = capsys.readouterr()
    (tmp_path / "keys").write_text(shown.out)
    key = shown.err.split()[-1]
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        model = ("--model", str(folder))
        target = await enter(process("target_service", environment, *model, "--tune-seconds", "0", "--threads", "1"))
        draft = await enter(process("draft_service", environment, *model, "--drafters", "ngram"))
        addresses = ("--target-addresses", f"127.0.0.1:{target}", "--draft-addresses", f"127.0.0.1:{draft}")
        keys = ("--api-keys", str(tmp_path / "keys"), "--tls-replica-name", "specdec.internal")
        port = await enter(process("coordinator", environment, *model, *addresses, *keys))
        address = f"127.0.0.1:{port}"
        caller = await enter(Client(address, api_key=key, tls=tls))
        await once_ready(caller)
        assert (await generated(caller, **GREEDY))[0] == expected
        for stranger, error in (
            (Client(address, tls=tls), Unauthenticated),
            (Client(address, api_key=key), Unavailable),
        ):
            async with stranger as client:
                with pytest.raises(error):
                    await client.info()
        for credentials in (None, tls):  # a replica wants a certificate, of us too
            async with open_channel(f"127.0.0.1:{target}", tls=credentials) as channel:
                stub = target_pb2_grpc.TargetServiceStub(channel)
                with pytest.raises(Exception, match="UNAVAILABLE"):
                    await stub.Info(common_pb2.InfoRequest(), timeout=5.0)
