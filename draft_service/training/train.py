"""From the command line to a draft folder."""

from __future__ import annotations

import argparse
import datetime
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

from draft_service.training.card import card
from draft_service.training.checkpoint import RunFolder
from draft_service.training.draft import Draft
from draft_service.training.eagle import EagleDraft
from draft_service.training.evaluation import evaluate
from draft_service.training.head_ids import coverage, write_head_ids
from draft_service.training.losses import LOSSES
from draft_service.training.medusa import MedusaDraft
from draft_service.training.rows import Rows
from draft_service.training.schedule import Schedule
from draft_service.training.setting import Setting, compute_features, open_features, prepare_setting, training_folder
from draft_service.training.show import trained
from draft_service.training.student import StudentDraft, spread_layers
from draft_service.training.trainer import Plan, Trainer
from specdec.core.errors import ConfigError
from specdec.lm.draft_folder import write_draft_folder
from specdec.lm.loading import read_config
from specdec.lm.prepare import prepare

HEAD_IDS = "head_ids.json"
_PATIENCE = datetime.timedelta(days=7)  # of processes that wait for hidden states
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STEPS = 4  # of an EAGLE head's own feedback that are judged
# What makes another draft; everything else only decides how long and where.
_RECIPE = (
    *("command", "seed", "row_tokens", "batch", "rate", "warm_up", "loss", "end_loss", "switch", "head_size", "dtype"),
    *("max_tokens", "float32", "layers", "num_layers", "heads", "unroll", "feature_weight"),
)


def train(arguments: argparse.Namespace) -> int:
    """Raises ConfigError."""
    _check(arguments)
    accelerator = Accelerator(
        cpu=arguments.device == "cpu", kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)]
    )
    torch.manual_seed(arguments.seed)
    quiet = not accelerator.is_main_process
    draft_layers, kept_layers = _layers(arguments)
    setting = prepare_setting(arguments, kept_layers, accelerator.device)
    if accelerator.is_local_main_process:
        compute_features(setting, kept_layers, quiet)
    accelerator.wait_for_everyone()
    draft = _draft(arguments, setting, draft_layers).to(accelerator.device)
    features = open_features(setting, kept_layers)
    lookahead = cast(Draft, draft).lookahead
    learned = Rows(setting.documents, setting.train, features, arguments.row_tokens, lookahead)
    held = Rows(setting.documents, setting.held, features, arguments.row_tokens, lookahead)
    folder = _run_folder(arguments, setting, accelerator.is_main_process)
    accelerator.wait_for_everyone()
    trainer = Trainer(cast(Draft, draft), setting.head, learned, held, _plan(arguments), folder, accelerator)
    with trained(arguments.command, quiet) as tell, _stopped() as stopped:
        if not trainer.run(tell, stopped):
            raise KeyboardInterrupt
    if accelerator.is_main_process:
        _finish(arguments, setting, cast(Draft, draft), held, trainer, folder)
    accelerator.end_training()
    return 0


@contextmanager
def _stopped() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come: a step is never cut in two."""
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda n, _: came.append(n)) for number in _SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.steps is None and arguments.minutes is None:
        raise ConfigError("steps", None, "say when to stop: --steps, --minutes or both")
    for name in ("batch", "row_tokens", "every", "eval_tokens", "final_eval_tokens"):
        if getattr(arguments, name) < 1:
            raise ConfigError(name, getattr(arguments, name), "must be at least 1")


def _layers(arguments: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The draft's choice of the target's layers, and those whose states are kept: the last one gives the law."""
    depth = int(read_config(str(prepare(arguments.target)), None).num_hidden_layers)
    if arguments.command == "medusa":
        return (depth,), (depth,)
    if arguments.command == "distill":
        chosen = arguments.layers or spread_layers(depth, arguments.num_layers)
        if not all(0 <= layer < depth for layer in chosen):
            raise ConfigError("layers", chosen, f"the target has layers 0 to {depth - 1}")
        return chosen, (depth,)
    chosen = arguments.layers or (depth,)
    if list(chosen) != sorted(set(chosen)) or not all(0 <= layer <= depth for layer in chosen):
        raise ConfigError("layers", chosen, f"must rise, from 0 to {depth}")
    return chosen, chosen if chosen[-1] == depth else (*chosen, depth)


def _draft(arguments: argparse.Namespace, setting: Setting, layers: tuple[int, ...]) -> torch.nn.Module:
    half = not arguments.float32
    if arguments.command == "distill":
        return StudentDraft(setting.parts, layers, setting.head, half_precision=half)
    if arguments.command == "medusa":
        return MedusaDraft(setting.parts, arguments.heads, setting.head, half_precision=half)
    return EagleDraft(
        setting.parts, layers, setting.head, unroll=arguments.unroll, feature_weight=arguments.feature_weight,
        half_precision=half,
    )  # fmt: skip


def _plan(arguments: argparse.Namespace) -> Plan:
    schedule = Schedule(
        arguments.rate, arguments.warm_up, LOSSES[arguments.loss], LOSSES[arguments.end_loss], arguments.switch
    )
    return Plan(
        schedule, arguments.seed, arguments.batch, arguments.steps, arguments.minutes, arguments.every,
        arguments.eval_tokens, _judged_steps(arguments),
    )  # fmt: skip


def _judged_steps(arguments: argparse.Namespace) -> int:
    return {"distill": 1, "medusa": getattr(arguments, "heads", 0), "eagle": _STEPS}[arguments.command]


def _run_folder(arguments: argparse.Namespace, setting: Setting, main: bool) -> RunFolder:
    fields = {name: getattr(arguments, name) for name in _RECIPE if hasattr(arguments, name)}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    recipe = {**fields, "target": setting.target.loaded.base_fingerprint}
    path = arguments.run_folder or training_folder() / "runs" / arguments.out.resolve().name
    folder = RunFolder(path, recipe, writes=main)
    if arguments.fresh:
        folder.forget()
    return folder


def _finish(
    arguments: argparse.Namespace, setting: Setting, draft: Draft, held: Rows, trainer: Trainer, folder: RunFolder
) -> None:
    device = setting.head.device
    steps = _judged_steps(arguments)
    evaluation = evaluate(draft, setting.head, held, arguments.final_eval_tokens, steps, device)
    loaded = setting.target.loaded
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    settings = {
        "kind": draft.kind,
        "target": loaded.name,
        "target_base_fingerprint": loaded.base_fingerprint,
        "tokenizer_hash": loaded.tokenizer_hash,
        "hidden_size": loaded.hidden_size,
        "vocab_size": loaded.vocab_size,
        "head_ids": HEAD_IDS if setting.head_ids is not None else None,
        "alpha": [round(alpha, 4) for alpha in evaluation.alpha],
        "accuracies": [[round(a, 4) for a in ranks] for ranks in evaluation.accuracies],
        **draft.settings(),
    }
    if setting.head_ids is not None:
        write_head_ids(out / HEAD_IDS, setting.head_ids)
    facts = _facts(arguments, setting, trainer)
    told = card(out.name, facts, evaluation, folder.curve, _command())
    write_draft_folder(out, settings, draft.tensors(), told, int8=not arguments.bf16)
    alphas = " ".join(f"{alpha:.3f}" for alpha in evaluation.alpha)
    print(f"wrote {out}: alpha {alphas} on {evaluation.positions:,} held-out positions")


def _facts(arguments: argparse.Namespace, setting: Setting, trainer: Trainer) -> Mapping[str, Any]:
    position = trainer.position
    tokens = sum(len(setting.documents[i].ids) for i in setting.train)
    ids = setting.head_ids
    held = [setting.documents[i] for i in setting.held]
    return {
        "Kind": arguments.command,
        "Target": f"{setting.target.loaded.name}, {arguments.dtype}",
        "Data": f"{len(setting.train):,} documents, {tokens:,} tokens; {len(setting.held)} documents held out",
        "Head": "all ids" if ids is None else f"{len(ids):,} ids, {coverage(held, ids):.2%} of held-out tokens",
        "Training": f"{position.step:,} steps, {position.tokens:,} judged tokens, {position.seconds / 60:.0f} minutes",
        "Seed": arguments.seed,
    }


def _command() -> str:
    """As it was given, without the folders of the machine it ran on."""
    words = iter(sys.argv[1:])
    kept = [Path(word).name if word.startswith("/") else word for word in words if not _is_place(word, words)]
    return shlex.join(["specdec", "train", *kept])


def _is_place(word: str, words: Iterator[str]) -> bool:
    """Whether it says where something is kept meanwhile; its argument is taken from `words` too."""
    if word == "--run-folder":
        next(words, "")
    return word.split("=")[0] == "--run-folder"
