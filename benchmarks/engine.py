"""The target engine beside `transformers` generate, vLLM's CPU build and a llama.cpp server: same weights, dtype,
prompts and token counts, greedy, alternating in one run.

    python -m benchmarks.engine [--model smollm2|qwen1.5b|qwen0.5b|FOLDER] [--dtype bfloat16] [--device cpu|cuda]
        [--network auto,lean,stock] [--peers [vllm,llamacpp]] [--profile] [--identity] [--quick] [--json FILE]
        [--streams 1,8] [--longest 1024]

Each subject is a process that loads its model once and is stopped while another is measured. Values are medians of
rounds; ratios are value over baseline, so speeds want more than 1 and times less. The raw read bandwidth is probed
before and after, and the better one counts. With `--device cuda --quick`, as with `--identity`, float32 subjects first
show that all networks, chunk sizes and drafts give the tokens of `transformers`."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bandwidth import bandwidth
from benchmarks.engine_plan import FULL, QUICK, Plan, Prompts, Run
from benchmarks.engine_rows import Weights, rows_of
from benchmarks.identity import identity
from benchmarks.models import prepared, weight_elements
from benchmarks.report import Row, parser, report
from benchmarks.subjects.lineup import PEERS, Entry, Setting, lineup, started
from specdec.lm.loading import DTYPES
from specdec.lm.prepare import SMOLLM2

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def setting_of(options: Namespace, plan: Plan) -> Setting:
    longest = max(length for length, _ in plan.prompts)
    return Setting(
        model=options.model,
        folder=prepared(options.model),
        dtype=options.dtype,
        device=options.device,
        kv_tokens=plan.kv_tokens,
        max_context=longest + plan.new_tokens,
        streams=plan.most_streams,
    )


def weights_of(setting: Setting, entries: Sequence[Entry], limit: float) -> Weights:
    held, read = weight_elements(Path(setting.folder))
    sizes = {e.name: ELEMENT_BYTES[setting.dtype if e.is_ours else setting.peer_dtype] for e in entries}
    return Weights(
        {name: size * held for name, size in sizes.items()}, {name: size * read for name, size in sizes.items()}, limit
    )


def measured(setting: Setting, plan: Plan, options: Namespace, logs: Path) -> list[Row]:
    networks, peers = _listed(options.network), _listed(options.peers)
    entries = lineup(setting, networks, peers, options.gguf)
    limit = max(bandwidth().values())
    with started(entries, logs) as subjects:
        run = Run(plan, entries, subjects, Prompts(setting.folder))
        samples = run.everything(profile=options.profile)
    limit = max(limit, *bandwidth().values())
    return rows_of(plan, samples, weights_of(setting, entries, limit))


def narrowed(plan: Plan, streams: Sequence[str], longest: int | None) -> Plan:
    """What is asked for of a plan that takes an hour with a large model."""
    if streams:
        plan = replace(plan, streams=tuple(point for point in plan.streams if str(point[0]) in streams))
    if longest is not None:
        prompts = tuple(point for point in plan.prompts if point[0] <= longest)
        plan = replace(plan, prompts=prompts, contexts=tuple(c for c in plan.contexts if c <= longest))
    if not plan.streams or not plan.prompts or not plan.contexts:
        raise SystemExit("nothing is left to measure: take other --streams or a larger --longest")
    return plan


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--model", default=SMOLLM2, help="smollm2, qwen1.5b, qwen0.5b, folder, hub name or .gguf")
    arguments.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES), help="int8: ours; the others bfloat16")
    arguments.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    arguments.add_argument("--network", default="auto", help="ours, each a subject: native, lean, stock, auto")
    arguments.add_argument("--peers", nargs="?", default="", const=",".join(PEERS), help="which, or all (CPU only)")
    arguments.add_argument("--gguf", help="for llama.cpp, of a model that is not smollm2, qwen1.5b or qwen0.5b")
    arguments.add_argument("--profile", action="store_true", help="where each millisecond of one of our steps goes")
    arguments.add_argument("--identity", action="store_true", help="show that greedy tokens are those of transformers")
    arguments.add_argument("--streams", help="of those that it would measure, such as 1,8")
    arguments.add_argument("--longest", type=int, help="longest prompt and context measured")
    options = arguments.parse_args(argv)
    plan = narrowed(QUICK if options.quick else FULL, _listed(options.streams or ""), options.longest)
    setting = setting_of(options, plan)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as logs:
        if options.identity or (options.quick and options.device != "cpu"):
            exact = replace(setting, dtype="float32")
            rows += identity(exact, _listed(options.network), Prompts(setting.folder), Path(logs))
        rows += measured(setting, plan, options, Path(logs))
    report(f"Target engine: {options.model}, {options.dtype}, {options.device}", rows, options.json)


if __name__ == "__main__":
    main()
