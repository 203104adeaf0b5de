"""What only several real processes can show: shared forwards, and one trace across them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdec.edge.client import Client
from specdec.edge.cluster import Cluster
from tests.end_to_end.clusters import PROMPT, all_generated, cluster, generated, tiny_folder
from tests.metrics import page, total
from tests.otlp_receiver import OtlpReceiver


def counted(running: Cluster, name: str, metric: str) -> float:
    """A counter of one process, as Prometheus would read it."""
    (member,) = [m for m in running.members if m.process.name == name]
    return total(page(member.metrics_url), metric)


@pytest.mark.timeout(120)
async def test_eight_sessions_share_forwards(tmp_path: Path) -> None:
    """The verifier runs far fewer forwards than there are cycles. Its forwards take milliseconds here: those of the
    other tests' models end before the next message is there, and leave nothing to share."""
    folder = tiny_folder(tmp_path / "model", hidden=768, std=0.02)
    request = {"token_ids": PROMPT, "max_tokens": 100, "temperature": 1.0, "num_draft_tokens": 3, "drafter": "ngram"}
    async with cluster(folder, tmp_path / "logs") as running, Client(running.address) as client:
        await generated(client, **request)
        before = counted(running, "verifier-0", "specdec_forwards_total")
        answers = await all_generated(client, [request] * 8)
        forwards = counted(running, "verifier-0", "specdec_forwards_total") - before
    cycles = sum(stats.cycles for _, stats in answers)
    assert forwards < 0.5 * cycles, f"{forwards} forwards for {cycles} cycles"


@pytest.mark.scenario("B118")
@pytest.mark.timeout(120)
async def test_one_request_is_one_trace_across_three_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cycle spans as cycles; each phase under its cycle; the replicas' spans under the phases that asked."""
    folder = tiny_folder(tmp_path / "model")
    with OtlpReceiver() as receiver:
        monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setitem(os.environ, "OTEL_BSP_SCHEDULE_DELAY", "100")
        async with cluster(folder, tmp_path / "logs") as running, Client(running.address) as client:
            _, stats = await generated(
                client, token_ids=PROMPT, max_tokens=40, temperature=0.0, num_draft_tokens=3, drafter="lm"
            )
        spans = [span for span in receiver.spans if span.name.startswith(("generate", "specdec.", "draft.", "target."))]
    by_id = {span.span_id: span for span in spans}
    named = {name: [s for s in spans if s.name == name] for name in {s.name for s in spans}}
    assert len({span.trace_id for span in spans}) == 1
    (root,) = [span for span in spans if span.name.startswith("generate")]
    assert len(named["specdec.cycle"]) == stats.cycles
    assert all(span.parent_id == root.span_id for span in named["specdec.cycle"])
    for phase in ("specdec.draft", "specdec.verify", "specdec.accept", "specdec.commit"):
        assert {by_id[s.parent_id].name for s in named[phase]} == {"specdec.cycle"}, phase
    assert {by_id[s.parent_id].name for s in named["draft.propose"]} == {"specdec.draft"}
    assert {by_id[s.parent_id].name for s in named["target.forward"]} == {"specdec.verify"}
    assert len(named["target.forward"]) == stats.cycles
