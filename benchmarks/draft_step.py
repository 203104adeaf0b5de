"""What one draft token costs: a draft model's step with its whole head and with heads cut to few ids, per dtype, beside
the step of the target that it drafts for.

    python -m benchmarks.draft_step [--draft smollm2] [--target smollm2] [--target-dtype bfloat16]
        [--dtypes bfloat16,int8] [--heads all,first:16384,first:8192] [--context 256] [--threads N] [--quick]
        [--json FILE]

One row behind a context, forward, law and choice of the token; medians of steps that take turns, one of each model a
round. ratio is c: draft step over target step. FOLDER of a draft folder works as well as a model."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import cast

import numpy as np
import torch

from benchmarks.models import prepared
from benchmarks.report import Row, parser, report
from specdec.core.sampling import SamplingParams
from specdec.lm.answers import answer_all, native_laws
from specdec.lm.draft_folder import is_draft_folder
from specdec.lm.draft_model import load_draft_model
from specdec.lm.histories import Histories
from specdec.lm.id_map import IdMap
from specdec.lm.loading import DTYPES, LoadedModel, load_model
from specdec.lm.networks import Dtype
from specdec.lm.question import Question
from specdec.lm.runner import Runner, Segment

GREEDY = SamplingParams(temperature=0.0)


class Stepping:
    """A model behind a context of random ids, one step at a time."""

    def __init__(self, loaded: LoadedModel, ids: IdMap | None, context: int) -> None:
        self._columns = loaded.vocab_size if ids is None else len(ids)
        self._context = np.random.default_rng(0).integers(0, loaded.vocab_size, context).astype(np.uint32)
        self._runner = Runner(loaded, context + 64)
        self._sequence = self._runner.new_sequence()
        self._runner.forward([Segment(self._sequence, self._context[:-1], wanted=1)])

    def step(self) -> float:
        """Seconds from the last token of the context to the next; what it computed is dropped, untimed."""
        begun = time.perf_counter()
        [logits] = self._runner.forward([Segment(self._sequence, self._context[-1:], wanted=1)])
        history = Histories(self._context, len(self._context), ((),))
        answer_all([Question(logits, history, GREEDY, keys=[0], confidence=True)], self._columns)
        seconds = time.perf_counter() - begun
        self._sequence.rewind(self._context[:-1])
        return seconds


def drafts(options: argparse.Namespace, target: str) -> dict[str, Stepping]:
    """By label, each draft model and head in each dtype."""
    folder = options.draft if is_draft_folder(options.draft) else prepared(options.draft)
    found = {}
    for dtype in options.dtypes.split(","):
        for head in options.heads.split(","):
            draft = load_draft_model(
                folder, target=target, dtype=cast(Dtype, dtype), device=options.device, head_ids=head
            )
            found[f"{dtype}, head {head}"] = Stepping(draft.loaded, draft.ids, options.context)
    return found


def measured(options: argparse.Namespace) -> list[Row]:
    folder = prepared(options.target)
    loaded = load_model(folder, dtype=options.target_dtype, device=options.device)
    target = Stepping(loaded, None, options.context)
    subjects = drafts(options, folder)
    times: dict[str, list[float]] = {name: [] for name in ("target", *subjects)}
    for _ in range(options.rounds):
        times["target"].append(target.step())
        for name, subject in subjects.items():
            times[name].append(subject.step())
    milliseconds = {name: 1e3 * median(values[1:]) for name, values in times.items()}
    whose = f"target, {options.target_dtype}"
    rows = [Row("step of the target", whose, milliseconds.pop("target"), "ms")]
    rows += [Row("draft step", name, value, "ms", whose, rows[0].value) for name, value in milliseconds.items()]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--draft", default="smollm2", help="smollm2, qwen0.5b, a model or draft folder, hub name")
    arguments.add_argument("--target", default="smollm2", help="smollm2, qwen1.5b, folder, hub name or .gguf")
    arguments.add_argument("--target-dtype", default="bfloat16", choices=tuple(DTYPES))
    arguments.add_argument("--dtypes", default="bfloat16,int8", help="of the draft model, comma separated")
    arguments.add_argument("--heads", default="all,first:16384,first:8192", help="as --head-ids, comma separated")
    arguments.add_argument("--context", type=int, default=256, help="tokens before the step")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, help="of each model on CPU; unset: torch decides")
    options = arguments.parse_args(argv)
    options.rounds = 9 if options.quick else 41
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    native_laws()
    report(
        f"Draft step: {options.draft} for {options.target}, context {options.context}", measured(options), options.json
    )


if __name__ == "__main__":
    main()
