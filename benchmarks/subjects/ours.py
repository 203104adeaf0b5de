"""Our target engine, without its server: sessions and verify jobs as the replica's batcher hands them over.

python -m benchmarks.subjects.ours FOLDER DTYPE DEVICE NETWORK KV_TOKENS"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.subjects.device import memory_of
from benchmarks.subjects.protocol import Handlers, serve
from specdec.core.sampling import SamplingParams
from specdec.core.tree import EMPTY_TREE, DraftTree, Ids
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.loading import Dtype, load_model
from specdec.lm.runner import Runner, Segment
from target_service.__main__ import tuned
from target_service.config import TargetConfig
from target_service.engine import Engine, EngineLimits
from target_service.session import TargetSession, VerifyJob
from target_service.verify import VerifyItem, verify_all

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(
    temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
)
SUPPORT = 32  # ids of a draft law, as many as the coordinator asks for
T = TypeVar("T")


class Ours:
    def __init__(self, folder: str, dtype: str, device: str, network: str, kv_tokens: int) -> None:
        config = TargetConfig(folder, dtype=dtype, device=device, network=network, kv_tokens=kv_tokens)
        self._loaded = load_model(folder, dtype=cast(Dtype, dtype), device=device, network=network)
        max_context = config.context_limit(self._loaded.max_context)
        self._runner = Runner(self._loaded, kv_tokens)
        schedule = tuned(config, self._loaded, max_context)
        self._limits = EngineLimits(schedule.budget, config.max_nodes, max_context, config.max_sessions)
        self._engine = Engine(self._runner, self._limits, schedule=schedule)
        self._random = np.random.default_rng(0)

    def handlers(self) -> Handlers:
        return {
            **memory_of(self._loaded.device),
            "about": self.about,
            "generate": self.generate,
            "steps": self.steps,
            "laws": self.laws,
            "profile": self.profile,
        }

    def about(self) -> dict[str, Any]:
        shape = self._loaded.network.kv_shape
        return {
            "network": type(self._loaded.network).__name__,
            "kv_bytes": self._runner.pool.capacity * shape.bytes_per_token,
            "vocab": self._loaded.vocab_size,
            "token_budget": self._engine.schedule.budget,
        }

    def generate(
        self, prompts: list[list[int]], new_tokens: int, token_budget: int | None = None, drafts: bool = False
    ) -> dict[str, Any]:
        """Greedy. token_budget: another engine with that one, which cuts prompts into other pieces. drafts: each
        step also verifies three guesses, drawn at random."""
        engine = self._engine
        if token_budget:
            limits = EngineLimits(token_budget, token_budget - 1, self._limits.max_context, self._limits.max_sessions)
            engine = Engine(self._runner, limits)
        begun = time.perf_counter()
        sessions = [engine.open(OpenSession(f"s{i}", GREEDY, 0, len(p))) for i, p in enumerate(prompts)]
        tree = DraftTree.chain(self._ids(3)) if drafts else EMPTY_TREE
        pending = [VerifyJob(s, _request(0, _array(p), tree)) for s, p in zip(sessions, prompts, strict=True)]
        outputs: dict[TargetSession, list[int]] = {session: [] for session in sessions}
        while pending:
            finished = engine.step(pending)
            for job, result in finished:
                pending.remove(job)
                assert isinstance(result.result, Verification), f"refused: {result.result}"
                token, output = result.result.drawn[:1], outputs[job.session]
                output.append(int(token[0]))
                if len(output) < new_tokens:
                    pending.append(VerifyJob(job.session, _request(len(job.session.context), token, tree)))
        for session in sessions:
            engine.close(session)
        return {"seconds": time.perf_counter() - begun, "tokens": list(outputs.values())}

    def steps(self, points: list[tuple[int, int]], repeats: int) -> dict[str, Any]:
        """points: rows and context of one session's step. Seconds of `repeats` steps each, the points taking turns."""
        sessions = [self._filled(context) for _, context in points]
        seconds: list[list[float]] = [[] for _ in points]
        for _ in range(repeats):
            for (rows, _), session, times in zip(points, sessions, seconds, strict=True):
                times.append(self._step(session, rows))
        for session in sessions:
            self._engine.close(session)
        return {"seconds": seconds}

    def laws(self, nodes: int, context: int, repeats: int) -> dict[str, Any]:
        """Seconds of the forward of a chain of `nodes` nodes and of their laws and draws, in both forms."""
        times: dict[str, list[float]] = {"forward": [], "Y": [], "PQ": []}
        token_ids, tree = self._ids(context), DraftTree.chain(self._ids(nodes - 1))
        supports = tuple(np.sort(self._ids(SUPPORT)) for _ in tree.inner_nodes)
        opening = OpenSession("laws", SAMPLED, 1, context // 2)
        sequence = self._runner.new_sequence()
        for _ in range(repeats):
            sequence.rewind(token_ids[:-1])
            held = sequence.num_context
            if held < context - 1:
                self._runner.forward([Segment(sequence, token_ids[held:-1], wanted=1)])
            segment = Segment(sequence, token_ids[-1:], tree.token_ids, tree.parents, wanted=nodes)
            [logits] = self._timed(times["forward"], partial(self._runner.forward, [segment]))
            for form in VerifyForm:
                request = VerifyRequest(0, 0, token_ids, tree, form, supports if form is VerifyForm.PQ else ())
                items = [VerifyItem(logits, token_ids, opening, request)]
                self._timed(times[form.name], partial(verify_all, items, self._loaded.vocab_size))
        sequence.release()
        return times

    def profile(self, rows: int, context: int, repeats: int) -> dict[str, Any]:
        """Seconds of each part of a greedy step; "engine" is what forward and laws do not take."""
        times: dict[str, list[float]] = {"forward": [], "laws": []}
        session, forward = self._filled(context), self._runner.forward
        with (
            patch.object(self._runner, "forward", lambda s: self._timed(times["forward"], lambda: forward(s))),
            patch(
                "target_service.engine.verify_all", lambda i, v: self._timed(times["laws"], lambda: verify_all(i, v))
            ),
        ):
            whole = [self._step(session, rows) for _ in range(repeats)]
        self._engine.close(session)
        parts = zip(whole, times["forward"], times["laws"], strict=True)
        return {**times, "engine": [step - forward - laws for step, forward, laws in parts]}

    def _filled(self, context: int) -> TargetSession:
        """A session that holds so many tokens, computed."""
        session = self._engine.open(OpenSession(f"c{context}", GREEDY, 0, context))
        self._run(VerifyJob(session, _request(0, self._ids(context))))
        return session

    def _step(self, session: TargetSession, rows: int) -> float:
        """Seconds of one step that computes the last token of the context again and a chain of new draft tokens."""
        tree = DraftTree.chain(self._ids(rows - 1))
        job = VerifyJob(session, _request(len(session.context), self._ids(0), tree))
        begun = time.perf_counter()
        self._run(job)
        return time.perf_counter() - begun

    def _run(self, job: VerifyJob) -> None:
        finished = self._engine.step([job])
        while not finished:
            finished = self._engine.step([job])
        result = finished[0][1].result
        assert isinstance(result, Verification), f"refused: {result}"

    def _timed(self, times: list[float], call: Callable[[], T]) -> T:
        begun = time.perf_counter()
        out = call()
        if self._loaded.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        return out

    def _ids(self, count: int) -> Ids:
        """Random tokens, so that no context is one that the prefix cache knows."""
        return self._random.integers(0, self._loaded.vocab_size, count).astype(np.uint32)


def _array(token_ids: Sequence[int]) -> Ids:
    return np.array(token_ids, dtype=np.uint32)


def _request(offset: int, token_ids: Ids, tree: DraftTree = EMPTY_TREE) -> VerifyRequest:
    return VerifyRequest(0, offset, token_ids, tree)


if __name__ == "__main__":
    folder, dtype, device, network, kv_tokens = sys.argv[1:]
    serve(lambda: Ours(folder, dtype, device, network, int(kv_tokens)).handlers())
