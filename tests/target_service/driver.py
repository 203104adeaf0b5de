"""Drives an engine as a coordinator would, in the y-form: draft, verify, walk, commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import OpenSession, StaleContext, VerifyRequest
from target_service.engine import Engine
from target_service.session import TargetSession, VerifyJob, VerifyResult

GREEDY = SamplingParams(temperature=0.0)
Drafter = Callable[[list[int]], DraftTree]


def long_pauses() -> Callable[[], float]:
    """A clock by which whoever is not being served has long been idle."""
    return partial(next, itertools.count(0.0, 10.0))


def plain(context: list[int]) -> DraftTree:
    return DraftTree.chain([])


def ids(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.uint32)


def guesses(truth: list[int], right: int, wrong: int, vocab: int) -> Drafter:
    """Chains: `right` true continuations of `truth`, then `wrong` false ones."""

    def draft(context: list[int]) -> DraftTree:
        ahead = truth[len(context) : len(context) + right]
        false = [(t + 1) % vocab for t in truth[len(context) + right : len(context) + right + wrong]]
        return DraftTree.chain(ids([*ahead, *false]))

    return draft


def bushes(truth: list[int], seed: int, vocab: int, nodes: int = 10) -> Drafter:
    """Random trees through which the true continuation goes some way."""
    random = np.random.default_rng(seed)

    def draft(context: list[int]) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        true_node = {0: 0}  # depth -> node on the true path
        for i in range(nodes):
            parent = int(random.integers(0, i + 1))
            depth = next((d for d, node in true_node.items() if node == parent), None)
            position = None if depth is None else len(context) + depth
            if depth is not None and depth + 1 not in true_node and position is not None and position < len(truth):
                true_node[depth + 1] = i + 1
                tokens.append(truth[position])
            else:
                tokens.append(int(random.integers(0, vocab)))
            parents.append(parent)
        return DraftTree(ids(tokens), np.array(parents, dtype=np.int64))

    return draft


def walk(tree: DraftTree, verification: Verification) -> list[int]:
    """Tokens that the y-form emits."""
    node, out = 0, []
    while True:
        y = int(verification.drawn[node])
        out.append(y)
        node = next((child for child in tree.children[node] if tree.token(child) == y), -1)
        if node < 0:
            return out


@dataclass
class Turn:
    """One generation. start: step at which it joins. Everything else is state."""

    prompt: list[int]
    length: int
    draft: Drafter = plain
    params: SamplingParams = GREEDY
    seed: int = 0
    start: int = 0
    session_id: str = "session"
    session: TargetSession | None = None
    context: list[int] = field(default_factory=list)
    sent: int = 0
    results: list[VerifyResult] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.context[len(self.prompt) : len(self.prompt) + self.length]

    @property
    def done(self) -> bool:
        return len(self.context) >= len(self.prompt) + self.length

    def next_job(self, engine: Engine) -> VerifyJob:
        opening = None
        if self.session is None:
            opening = OpenSession(self.session_id, self.params, self.seed, len(self.prompt))
            self.session, self.context = engine.open(opening), list(self.prompt)
        room = engine.limits.max_context - len(self.context)
        tree = self.draft(self.context)
        while int(tree.depths.max()) > room:
            tree = tree.truncate(tree.num_draft_tokens - 1)
        offset = self.sent
        request = VerifyRequest(len(self.results), offset, ids(self.context[offset:]), tree, open=opening)
        self.sent = len(self.context)
        return VerifyJob(self.session, request)

    def take(self, job: VerifyJob, result: VerifyResult) -> None:
        self.results.append(result)
        if isinstance(result.result, StaleContext):
            self.sent = result.result.held
            return
        assert isinstance(result.result, Verification), result.result
        self.context += walk(job.request.tree, result.result)


def run(engine: Engine, turns: Sequence[Turn], max_steps: int = 5000) -> None:
    """All turns to their end, together; closes their sessions."""
    jobs: dict[int, Turn] = {}
    pending: list[VerifyJob] = []
    waiting = list(turns)
    for step in range(max_steps):
        for turn in [t for t in waiting if t.start <= step]:
            waiting.remove(turn)
            pending.append(turn.next_job(engine))
            jobs[id(pending[-1])] = turn
        for job, result in engine.step(pending):
            pending.remove(job)
            turn = jobs.pop(id(job))
            turn.take(job, result)
            if turn.done:
                assert turn.session is not None
                engine.close(turn.session)
            else:
                pending.append(turn.next_job(engine))
                jobs[id(pending[-1])] = turn
        if not pending and not waiting:
            return
    raise AssertionError(f"no end after {max_steps} steps")


def generate(engine: Engine, prompt: Sequence[int], length: int, **options: object) -> list[int]:
    turn = Turn(list(prompt), length, **options)  # type: ignore[arg-type]
    run(engine, [turn])
    return turn.output


def pq_request(cycle: int, token_ids: Sequence[int], tree: DraftTree, supports: Sequence[np.ndarray]) -> VerifyRequest:
    return VerifyRequest(cycle, 0, ids(token_ids), tree, VerifyForm.PQ, tuple(supports))
