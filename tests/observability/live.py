"""Rules and dashboards on a real Prometheus that scrapes a real cluster under load; then every drafter is killed.

    python -m tests.observability.live        # four to five minutes, no root, no containers

Shown: what each recording rule says, which dashboard queries have no answer, and how long it takes until DraftersAbsent
fires, by the rule as it is. Ends with 1 where a rule is silent that should speak, or the alert does not come."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from specdec.core.errors import SpecdecError
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, free_ports
from tests.end_to_end.clusters import PROMPT, cluster, generated, tiny_folder
from tests.metrics import page
from tests.observability.documents import panels, read_yaml, recorded
from tests.observability.prometheus import OBSERVABILITY, RULES, program

LOAD_SECONDS = 75
ALERT_PATIENCE = 240  # seconds: two minutes until the alert may fire, and as long again
SESSIONS = 4
NEEDS_A_DAY = {"specdec:alpha_counted:ratio1d_before", "specdec:judged_tokens:increase1d_before"}
JOBS = {"coordinator": "coordinator", "drafter": "draft", "verifier": "target"}  # a cluster's names, and the service's


class Prometheus:
    """Its query interface."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples that are numbers: 0/0, which says that nothing happened, is none."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as reply:
            found = json.load(reply)["data"]["result"]
        return [sample for sample in found if sample["value"][1] != "NaN"]

    def firing(self) -> set[str]:
        return {sample["metric"]["alertname"] for sample in self.query('ALERTS{alertstate="firing"}')}


def configuration(running: Cluster) -> dict[str, Any]:
    """Ours, with this cluster's addresses for names in DNS, and a look every second."""
    config: dict[str, Any] = read_yaml(OBSERVABILITY / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES / "*.yml")]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        members = [m for m in running.members if JOBS[m.process.name.partition("-")[0]] == job["job_name"]]
        addresses = [urllib.parse.urlparse(member.metrics_url).netloc for member in members]
        job["static_configs"] = [{"targets": addresses}]
    return config


@asynccontextmanager
async def prometheus(config: dict[str, Any], folder: Path) -> AsyncIterator[Prometheus]:
    file, (port,) = folder / "prometheus.yml", free_ports(1)
    file.write_text(yaml.safe_dump(config))
    flags = (f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program("prometheus"), *flags, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            async with asyncio.timeout(30):
                while "Ready" not in await asyncio.to_thread(page, f"{url}/-/ready"):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            yield Prometheus(url)
        finally:
            process.terminate()
            await process.wait()


async def load(address: str) -> None:
    """Sampled and greedy by turns, by a drafter with a model and by n-grams."""
    async with Client(address) as client:
        for number in range(1 << 30):
            fields = {"temperature": float(number % 2), "drafter": ("lm", "ngram")[number // 2 % 2]}
            with suppress(SpecdecError):
                await generated(client, token_ids=PROMPT, max_tokens=60, num_draft_tokens=3, **fields)


def told(names: Iterable[str], where: Prometheus) -> list[str]:
    """Prints what each recorded name says; returns those that say nothing."""
    silent = []
    for name in sorted(names):
        found = where.query(name)
        for sample in found:
            labels = {key: value for key, value in sample["metric"].items() if key != "__name__"}
            print(f"  {name}{labels or ''} = {float(sample['value'][1]):.4g}")
        if not found:
            silent.append(name)
    return silent


async def alert(name: str, where: Prometheus) -> float:
    """Seconds until it fires."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with asyncio.timeout(ALERT_PATIENCE):
        while name not in await asyncio.to_thread(where.firing):  # noqa: ASYNC110
            await asyncio.sleep(1)
    return clock() - begun


async def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = await asyncio.to_thread(tiny_folder, folder / "model")
        async with (
            cluster(model, folder / "logs", drafters=2) as running,
            prometheus(configuration(running), folder) as where,
        ):
            sessions = [asyncio.create_task(load(running.address)) for _ in range(SESSIONS)]
            try:
                return await watched(running, where)
            finally:
                for session in sessions:
                    session.cancel()
                await asyncio.gather(*sessions, return_exceptions=True)


async def watched(running: Cluster, where: Prometheus) -> int:
    print(f"{SESSIONS} sessions for {LOAD_SECONDS} seconds ...", flush=True)
    await asyncio.sleep(LOAD_SECONDS)
    silent = await asyncio.to_thread(told, recorded() - NEEDS_A_DAY, where)
    queries = [query.replace("$__rate_interval", "1m") for panel in panels() for query in panel.expressions]
    empty = [query for query in queries if not await asyncio.to_thread(where.query, query)]
    print(f"{len(queries) - len(empty)} of {len(queries)} dashboard queries have an answer; none here for:")
    print(*(f"  {query}" for query in empty), sep="\n")
    early = await asyncio.to_thread(where.firing)
    print(f"alerts that fire under load: {', '.join(sorted(early)) or 'none'}; killing the drafters ...", flush=True)
    await asyncio.gather(*(m.process.stop(0.0) for m in running.members if m.process.name.startswith("drafter")))
    print(f"DraftersAbsent fires {await alert('DraftersAbsent', where):.0f} s later")
    if silent or early:
        print(f"rules that say nothing: {silent}; alerts that should be silent: {early}")
    return 1 if silent or early else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
