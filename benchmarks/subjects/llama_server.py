"""llama.cpp's server, asked over HTTP on loopback as its clients do.

python -m benchmarks.subjects.llama_server PROGRAM FILE.gguf SEQUENCES KV_TOKENS [FLAG...]

FLAG: more of the server's own, such as those of its speculation."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.subjects.protocol import Handlers, die_with_parent, serve

START_SECONDS = 120.0
_servers: list[subprocess.Popen[bytes]] = []


def load(program: str, gguf: str, sequences: str, kv_tokens: str, *flags: str) -> Handlers:
    threads = str(len(os.sched_getaffinity(0)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--model", gguf, "--host", "127.0.0.1", "--port", str(port), "--threads", threads]
    command += ["--ctx-size", kv_tokens, "--parallel", sequences, "--kv-unified", "--offline", *flags]
    server = subprocess.Popen(command, stdout=2, preexec_fn=die_with_parent)
    _servers.append(server)
    _wait(server, f"http://127.0.0.1:{port}/health")

    counts = {"drafted": 0, "accepted": 0}

    def one(prompt: list[int], new_tokens: int, cache: bool) -> list[int]:
        body = {"prompt": prompt, "n_predict": new_tokens, "temperature": 0.0, "ignore_eos": True}
        body |= {"cache_prompt": cache, "return_tokens": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            content = json.load(reply)
        counts["drafted"] += content["timings"].get("draft_n", 0)
        counts["accepted"] += content["timings"].get("draft_n_accepted", 0)
        tokens: list[int] = content["tokens"]
        return tokens

    def generate(prompts: list[list[int]], new_tokens: int, cache: bool = False) -> dict[str, Any]:
        """cache: what the server kept of a prompt's beginning is not computed again."""
        begun = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            tokens = list(pool.map(lambda prompt: one(prompt, new_tokens, cache), prompts))
        return {"seconds": time.perf_counter() - begun, "tokens": tokens}

    return {"generate": generate, "drafts": lambda: dict(counts)}


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)  # it loads, and tells nobody when it is done
    raise RuntimeError("the server did not come up")


if __name__ == "__main__":
    try:
        serve(lambda: load(*sys.argv[1:]), lambda: [server.pid for server in _servers])
    finally:
        for server in _servers:
            server.kill()
            server.wait()
