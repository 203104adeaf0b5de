"""`python -m draft_service.training`, what `specdec train` runs; in several processes or on several hosts by
`accelerate launch -m` or `torchrun -m`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from draft_service.training.arguments import parser
from draft_service.training.corpus import split
from draft_service.training.head_ids import coverage, write_head_ids
from draft_service.training.self_written import ChatFrame, WritingPlan, append_to, write
from draft_service.training.self_written import read as read_written
from draft_service.training.setting import Target, default_data
from draft_service.training.show import counted
from draft_service.training.train import train
from specdec.core.errors import InvalidArgument, SpecdecError
from specdec.lm.runner import Runner

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
KV_TOKENS = 1024  # of a conversation


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 asked for something impossible, 130 interrupted: the same command goes on."""
    arguments = parser().parse_args(argv)
    try:
        return {"write": _write, "head-ids": _head_ids}.get(arguments.command, train)(arguments)
    except SpecdecError as error:
        print(f"specdec train {arguments.command}: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, InvalidArgument) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _write(arguments: argparse.Namespace) -> int:
    target = Target.load(arguments.target, arguments.dtype, arguments.device)
    out = arguments.out or default_data(target)
    frame = ChatFrame.of(target.tokenizer, target.loaded.eos_ids)
    plan = WritingPlan(seed=arguments.seed, streams=arguments.streams)
    runner = Runner(target.loaded, plan.streams * KV_TOKENS)
    # Numbers of conversations that a killed run had begun are passed over: none is ever written twice.
    first = len(read_written(out)) * 2
    counted("writing", append_to(out, write(runner, frame, plan, first), arguments.tokens), arguments.tokens, False)
    print(out)
    return 0


def _head_ids(arguments: argparse.Namespace) -> int:
    target = Target.load(arguments.target, arguments.dtype, arguments.device)
    documents = target.documents(arguments.data, target.loaded.max_context)
    if arguments.tokens is not None:
        held = 0
        for count, document in enumerate(documents, 1):
            held += len(document.ids)
            if held >= arguments.tokens:
                documents = documents[:count]
                break
    train, held_out = split(documents)
    ids = target.frequent_ids([documents[i] for i in train], arguments.size)
    write_head_ids(arguments.out, ids)
    share = coverage([documents[i] for i in held_out], ids)
    print(f"wrote {arguments.out}: {len(ids):,} ids, {share:.2%} of the tokens of held-out documents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
