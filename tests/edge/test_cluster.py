"""Real clusters: coordinator, drafter and verifier as processes of their own, on a tiny random Llama."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from benchmarks.subjects.process import descendants
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.comparison import run
from specdec.edge.draft_entries import DraftEntries
from specdec.edge.process import ProcessFailed
from tests.edge.eventually import eventually
from tests.edge.specdec_command import running, specdec
from tests.tiny_models import make_tiny_model
from tests.toy_tokenizers import EOS_ID, save_folder, toy_vocab_size

PROMPT = "the hello the hello the hello"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, vocab_size=toy_vocab_size("byte_level"), max_context=2048, eos_id=EOS_ID)
    return save_folder(folder, "byte_level")


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "other"
    make_tiny_model(folder, vocab_size=toy_vocab_size("word_start"), eos_id=EOS_ID)
    return save_folder(folder, "word_start")


def gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take their settings from the environment: verifiers need not measure themselves here."""
    monkeypatch.setenv("TUNE_SECONDS", "0")


async def test_up_serves_until_it_is_told_to_stop_and_leaves_nothing_behind(model: Path) -> None:
    async with running("up", "--target", str(model), "--draft", "first:1", "--port", "0") as up:
        assert up.stderr is not None
        shown = ""
        while "Metrics:" not in shown:
            line = await up.stderr.readline()
            assert line, f"up ended: {shown}"
            shown += line.decode()
        (address,) = re.findall(r"coordinator serves on (\S+)", shown)
        (logs,) = re.findall(r"logs: (\S+)", shown)
        pids = {*descendants(up.pid)}
        assert len(pids) == 3
        flags = ("--address", address, "--temperature", "0", "--max-tokens", "24", "--ignore-eos")
        answers = {
            (await specdec("generate", PROMPT, *flags, *more)).out
            for more in (["--drafter", "lm"], ["--drafter", "ngram"], ["--num-draft-tokens", "0"])
        }
        assert len(answers) == 1 and len(answers.pop()) > 1
        up.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await up.wait() == 0
        assert gone(pids)
        assert not os.path.exists(logs)  # noqa: PTH110, ASYNC240


async def test_a_model_that_cannot_be_loaded_ends_up_with_a_sentence(model: Path, tmp_path: Path) -> None:
    broken = save_folder(tmp_path / "broken", "byte_level", config={"model_type": "llama", "vocab_size": 300})
    (broken / "model.safetensors").write_bytes(b"not weights")
    ended = await specdec("up", "--target", str(broken), "--port", "0", "--log-folder", str(tmp_path / "logs"))
    assert ended.code == 1
    assert "specdec up: verifier-0 ended with exit code 2" in ended.err
    assert "cannot be loaded" in ended.err
    assert "Ready" not in ended.err


async def test_without_a_usable_verifier_the_cluster_does_not_start(
    model: Path, other_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.edge.cluster.PATIENCE", 3.0)
    monkeypatch.setattr("specdec.edge.cluster._target_arguments", lambda *_: ["--model", str(other_model)])
    cluster = Cluster(ClusterSpec(str(model)), tmp_path, lambda _: None)
    with pytest.raises(ProcessFailed, match=r"coordinator is not ready(.|\n)*excluded: tokenizer: its hash is"):
        await cluster.__aenter__()
    await eventually(lambda: gone({m.process.pid for m in cluster.members}))


async def test_one_process_lost_ends_the_work_and_every_other_process(model: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    pids: set[int] = set()

    async def work(cluster: Cluster) -> None:
        async with Client(cluster.address) as client:
            pids.update(m.process.pid for m in cluster.members)
            answer = await run(client, text=PROMPT, temperature=0.0, max_tokens=8, ignore_eos=True)
            assert len(answer.token_ids) == 8
            os.kill(cluster.members[0].process.pid, signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ProcessFailed, match="verifier-0 was killed by SIGKILL"):
        async with Cluster(ClusterSpec(str(model)), tmp_path, lines.append) as cluster:
            await cluster.guard(work(cluster))
    assert len(pids) == 3
    await eventually(lambda: gone(pids))
    assert [line.split()[0] for line in lines][-1] == "coordinator"


async def test_a_draft_model_that_does_not_fit_is_told_and_the_rest_serves(
    model: Path, other_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.edge.cluster.PATIENCE", 3.0)
    lines: list[str] = []
    spec = ClusterSpec(str(model), DraftEntries((f"lm:{other_model}",)))
    async with Cluster(spec, tmp_path, lines.append) as cluster, Client(cluster.address) as client:
        answer = await cluster.guard(run(client, text=PROMPT, temperature=0.0, max_tokens=8, ignore_eos=True))
    assert len(answer.token_ids) == 8
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert "0 of 1 drafters" in warning


async def test_the_demo_runs_on_any_model_and_finds_every_output_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a verifier that has measured itself."""
    monkeypatch.setenv("TUNE_SECONDS", "0.3")
    ended = await specdec("demo", "--target", str(model), "--draft", "first:1", "--pairs", "1")
    assert ended.code == 0, ended.err
    for shown in ("accepted", "recovered", "bonus", "tokens/s at k = 0", "exact alpha", "Every output was the same"):
        assert shown in ended.out
