"""`specdec profile` as a user runs it: on a real cluster of its own, and what it refuses before it starts one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.drift import read_profile
from tests.edge.specdec_command import specdec
from tests.tiny_models import make_tiny_model
from tests.toy_tokenizers import EOS_ID, save_folder, toy_vocab_size


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, vocab_size=toy_vocab_size("byte_level"), max_context=2048, eos_id=EOS_ID)
    return save_folder(folder, "byte_level")


@pytest.mark.timeout(240)
async def test_a_profile_of_a_tiny_cluster(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_SECONDS", "0")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"domain": "a", "text": "the hello the hello"}\n{"domain": "b", "text": "hello the"}\n')
    ended = await specdec(
        *("profile", "--target", str(model), "--draft", "first:1", "--threads", "1", "--prompts", str(prompts)),
        *("--temperatures", "0,1", "--k", "2", "--max-tokens", "40", "--only", "lm"),
        *("--json", str(tmp_path / "profile.json"), "--picture", str(tmp_path / "profile.svg")),
    )
    assert ended.code == 0, ended.err
    assert "speedup" in ended.out and ("Use drafter" in ended.out or "Decode plainly" in ended.out)
    content = json.loads((tmp_path / "profile.json").read_text())
    cells = {(cell["domain"], cell["temperature"], cell["drafter"]): cell for cell in content["cells"]}
    assert {(domain, t) for domain, t, _ in cells} == {(d, t) for d in ("a", "b", "all") for t in (0.0, 1.0)}
    sampled, greedy = cells["all", 1.0, "lm"], cells["all", 0.0, "lm"]
    assert 0 < sampled["exact_alpha"] < 1 and greedy["exact_alpha"] is None
    assert sampled["costs"]["c"] > 0 and sampled["points"][0]["speedup"] > 0
    assert set(content["drafters"]["lm"]) == {"greedy", "sampled"}
    assert read_profile(str(tmp_path / "profile.json")).keys() <= {("lm", "greedy"), ("lm", "sampled")}
    assert b"<svg" in (tmp_path / "profile.svg").read_bytes()


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--temperatures", "0,warm"), "temperatures"),
        (("--temperatures", "-1"), "temperatures"),
        (("--k", "0"), "k = "),
        (("--nodes", "a"), "nodes"),
        (("--rounds", "0"), "rounds"),
        (("--json", "/nowhere/profile.json"), "json"),
        (("--picture", "picture.bmp2"), "picture"),
        (("--prompts", "/nowhere/prompts"), "prompts"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], field: str
) -> None:
    from specdec.edge.cli import main

    assert main(["profile", "--address", "127.0.0.1:1", *flags]) == 2
    assert field in capsys.readouterr().err


async def test_an_unknown_drafter_and_a_coordinator_that_is_not_there_are_told() -> None:
    ended = await specdec("profile", "--address", "127.0.0.1:1")
    assert ended.code == 1
    assert "127.0.0.1:1" in ended.err and "Traceback" not in ended.err
