from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draft_service.training.__main__ import main
from draft_service.training.train import train
from draft_service.training.trainer import Trainer
from specdec.core.errors import ConfigError
from specdec.lm.draft_folder import read_draft_folder
from specdec.lm.draft_model import load_draft_model
from specdec.lm.heads import EagleHead, MedusaHeads, decoder_config
from specdec.lm.loading import read_config

Parse = Callable[..., argparse.Namespace]
ROOT = Path(__file__).parents[3]


def argv(arguments: argparse.Namespace) -> list[str]:
    """The command line of parsed arguments again."""
    given = []
    for name, value in vars(arguments).items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            given.append(flag)
        elif name != "command" and value not in (None, False):
            given += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return [arguments.command, *given]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_draft_folder(folder).tensors)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("distill", ("--num-layers", "2")),
        ("medusa", ("--heads", "2")),
        ("eagle", ("--unroll", "1", "--layers", "1,2")),
    ],
)
def test_a_draft_is_trained_and_its_folder_loads(kind: str, more: tuple[str, ...], arguments: Parse) -> None:
    parsed = arguments(
        kind, "--steps", "60", "--every", "20", "--rate", "0.01", "--warm-up", "5", "--end-loss", "kl", *more
    )
    assert main(argv(parsed)) == 0
    curve = json.loads((parsed.out.parent / "cache/specdec/training/runs" / kind / "curves.json").read_text())
    assert [point["step"] for point in curve] == [20, 40, 60]
    losses = [point["loss"] for point in curve]
    assert losses == sorted(losses, reverse=True)
    folder = read_draft_folder(parsed.out)
    assert folder.settings["alpha"][0] > 0.05
    card = (parsed.out / "README.md").read_text()
    assert "specdec train" in card
    assert "| 60 |" in card
    config = read_config(str(parsed.target), None)
    if kind == "distill":
        drafter = load_draft_model(str(parsed.out), target=str(parsed.target), dtype="float32", device="cpu")
        assert drafter.loaded.num_layers == 2
    elif kind == "medusa":
        MedusaHeads(config.hidden_size, folder.settings["num_heads"]).load_state_dict(dict(folder.tensors))
        assert len(folder.settings["accuracies"]) == 2
    else:
        EagleHead(config.hidden_size, 2, decoder_config(config)).load_state_dict(dict(folder.tensors))
        assert folder.settings["feature_layers"] == [1, 2]
        assert len(folder.settings["alpha"]) == 4


def test_a_run_that_is_taken_up_ends_bit_for_bit_where_one_in_one_go_does(
    arguments: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ("--steps", "12", "--every", "5", "--bf16")
    train(whole := arguments("eagle", *plan, "--run-folder", str(tmp_path / "whole")))
    step = Trainer._step

    def killed(self: Trainer, progress: float) -> tuple[float, int]:
        if self.position.step == 7:  # behind the checkpoint of step 5
            raise RuntimeError("killed")
        return step(self, progress)

    cut = arguments("eagle", *plan, "--run-folder", str(tmp_path / "cut"))
    cut.out = tmp_path / "cut-out"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(cut)
    train(cut)
    expected, found = tensors(whole.out), tensors(cut.out)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert len(json.loads((tmp_path / "cut" / "curves.json").read_text())) == 3


def test_another_recipe_does_not_go_on_with_a_run(arguments: Parse) -> None:
    train(arguments("medusa", "--steps", "2"))
    with pytest.raises(ConfigError, match="other rate"):
        train(arguments("medusa", "--steps", "2", "--rate", "0.5"))
    train(arguments("medusa", "--steps", "2", "--rate", "0.5", "--fresh"))


def test_without_an_end_nothing_is_begun(arguments: Parse) -> None:
    with pytest.raises(ConfigError, match="--minutes"):
        train(arguments("medusa"))


def test_an_impossible_choice_is_exit_code_2(arguments: Parse, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv(arguments("eagle", "--steps", "1", "--layers", "2,9"))) == 2
    assert "layers" in capsys.readouterr().err


def test_two_processes_train_what_one_trains(arguments: Parse, tmp_path: Path) -> None:
    one = arguments("medusa", "--steps", "6", "--bf16", "--heads", "2", "--run-folder", str(tmp_path / "one"))
    train(one)
    two = arguments("medusa", "--steps", "6", "--bf16", "--heads", "2", "--run-folder", str(tmp_path / "two"))
    two.out = tmp_path / "two-out"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*launch, "-m", "draft_service.training", *argv(two)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = tensors(one.out), tensors(two.out)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=2e-3, rtol=0.02)


def test_the_target_writes_and_goes_on_writing(
    cache: Path, target_folder: Path, tmp_path: Path
) -> None:  # fmt: skip
    file = tmp_path / "written.jsonl"
    common = ["--target", str(target_folder), "--dtype", "float32"]
    for tokens in (600, 1200):
        assert main(["write", *common, "--out", str(file), "--tokens", str(tokens), "--streams", "4"]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum(len(line["ids"]) for line in lines) >= 1200
    assert len({tuple(line["ids"]) for line in lines}) == len(lines)
    ids = tmp_path / "ids.json"
    assert main(["head-ids", *common, "--data", str(file), "--out", str(ids), "--size", "50"]) == 0
    assert len(json.loads(ids.read_text())) == 50
