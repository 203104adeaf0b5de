"""Scripted replicas: a verifier and a drafter whose laws are a table's, computed the slow, obvious way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from protos import draft_pb2_grpc, target_pb2_grpc
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.laws import draft_law, draw
from specdec.core.randomness import Purpose, coupled_choice, target_key, uniforms
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree, Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from specdec.edge.draft_codec import decode_draft_request, encode_draft_reply
from specdec.edge.messages import DraftReply, DraftRequest, ReplicaInfo, Timing, VerifyReply, VerifyRequest
from specdec.edge.verify_codec import decode_verify_request, encode_verify_reply
from tests.fakes.features import scripted_features
from tests.fakes.scripted import Scripted, Stream
from tests.reference import reference_scores, reference_y


@dataclass(eq=False)
class ScriptedTarget(Scripted, target_pb2_grpc.TargetServiceServicer):
    async def Verify(self, messages: Any, context: Any) -> None:
        def decode(message: Any) -> VerifyRequest:
            return decode_verify_request(message, vocab_size=self.table.vocab_size, max_nodes=self.max_nodes)

        await self._stream(messages, context, decode, encode_verify_reply)

    def _reply(self, stream: Stream, request: VerifyRequest) -> VerifyReply:
        reply: VerifyReply = super()._reply(stream, request)
        wanted = stream.opening is not None and stream.opening.feature_layers
        if not wanted or not isinstance(reply.result, Verification):
            return reply
        return replace(reply, features=scripted_features(stream, request, reply.result))

    def _answer(self, request: VerifyRequest, result: Any, computed: int) -> VerifyReply:
        return VerifyReply(request.cycle, result, Timing(10, 100, 1, computed), self.load)

    def _compute(self, stream: Stream, request: VerifyRequest) -> Verification:
        opening, tree = stream.opening, request.tree
        assert opening is not None
        base = len(stream.tokens)
        deepest = base + int(tree.depths.max())
        assert deepest < self.max_context, f"position {deepest} does not fit into {self.max_context}"
        laws = [self._law(stream, tree.path(node)) for node in range(tree.num_nodes)]
        depths = tree.depths.tolist()
        logprobs = None
        if request.form is not VerifyForm.PQ:
            drawn = [reference_y(law, opening.seed, base + d) for law, d in zip(laws, depths, strict=True)]
            targets: tuple[TargetLaw, ...] = ()
        else:
            drawn, targets = _outside(laws, request, uniforms(opening.seed, base, Purpose.OUTSIDE, tree.num_nodes))
        child_p = None
        if request.want_child_p or request.form is VerifyForm.TYPICAL:
            child_p = np.array(
                [laws[p][t] for p, t in zip(tree.parents, tree.token_ids, strict=True)], dtype=np.float32
            )
        if opening.params.logprobs is not None:
            logprobs = self._logprobs(stream, request, drawn, opening.params)
        entropies = None
        if request.form is VerifyForm.TYPICAL:
            entropies = np.array([-sum(p * np.log(p) for p in law if p > 0) for law in laws], dtype=np.float32)
        return Verification(request.form, np.array(drawn, dtype=np.uint32), targets, child_p, logprobs, entropies)

    def _logprobs(self, stream: Stream, request: VerifyRequest, drawn: list[int], params: SamplingParams) -> Logprobs:
        tree, top = request.tree, params.logprobs or 0
        raw = []
        for node in range(tree.num_nodes):
            context = [*stream.tokens, *tree.path(node)]
            scores = np.array(reference_scores(self.table.logits(context), context, 0, SamplingParams()))
            raw.append(scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max())
        order = np.array([np.argsort(-r, kind="stable")[:top] for r in raw], dtype=np.uint32).reshape(len(raw), top)
        inner = zip(tree.inner_nodes, request.supports, strict=False)
        safe = [d if d != NO_OUTSIDE else 0 for d in drawn]
        return Logprobs(
            drawn=np.array([r[d] for r, d in zip(raw, safe, strict=True)], dtype=np.float32),
            support=tuple(raw[node][ids].astype(np.float32) for node, ids in inner),
            top_ids=order,
            top=np.array([r[o] for r, o in zip(raw, order, strict=True)], dtype=np.float32).reshape(len(raw), top),
        )


def _outside(laws: list[Any], request: VerifyRequest, us: Any) -> tuple[list[int], tuple[TargetLaw, ...]]:
    """Outside samples and laws on the supports (algorithms.md, section 5), the obvious way."""
    supports = dict(zip(request.tree.inner_nodes, request.supports, strict=True))
    drawn, targets = [], []
    for node, law in enumerate(laws):
        ids = supports.get(node, np.zeros(0, dtype=np.uint32))
        inside = [int(i) for i in ids]
        outside = law.copy()
        outside[[i for i in inside if i < len(law)]] = 0.0
        drawn.append(draw(outside, float(us[node])) if outside.any() else NO_OUTSIDE)
        if node in supports:
            p = np.array([law[i] if i < len(law) else 0.0 for i in inside], dtype=np.float32)
            targets.append(TargetLaw(ids, p, float(outside.sum())))
    return drawn, tuple(targets)


Guess = Draft  # ScriptedDrafter has a method of the class's name
Propose = Callable[[list[int], int], list[int]]


@dataclass(eq=False)
class ScriptedDrafter(Scripted, draft_pb2_grpc.DraftServiceServicer):
    """propose(context, k): deterministic drafts; without it drafts are drawn from the table's law, sampled or coupled
    as asked. parents: the shape of a sampled tree drawn without replacement, None for chains. reported: law -> law
    that is sent instead of the one drawn from (a fault)."""

    propose: Propose | None = None
    reported: Callable[[DraftLaw], DraftLaw] | None = None
    parents: tuple[int, ...] | None = None
    support: int = 0

    async def Draft(self, messages: Any, context: Any) -> None:
        def decode(message: Any) -> DraftRequest:
            return decode_draft_request(message, vocab_size=self.table.vocab_size)

        await self._stream(messages, context, decode, encode_draft_reply)

    def info(self) -> ReplicaInfo:
        return replace(super().info(), drafters=self.info_overrides.get("drafters", ("lm",)))

    def _answer(self, request: DraftRequest, result: Any, computed: int) -> DraftReply:
        return DraftReply(request.cycle, result, Timing(5, 50, 1, computed), self.load)

    def _compute(self, stream: Stream, request: DraftRequest) -> Guess:
        assert request.num_draft_tokens > 0, "asked for nothing"
        if self.propose is not None:
            tokens = self.propose(list(stream.tokens), request.num_draft_tokens)
            return Draft(DraftTree.chain(np.array(tokens, dtype=np.uint32)), drafter="scripted")
        if request.kind is DraftKind.CHOSEN:
            return self._coupled(stream, request.num_draft_tokens)
        return self._sampled(stream, request)

    def _coupled(self, stream: Stream, k: int) -> Guess:
        assert stream.opening is not None
        path: list[int] = []
        for _ in range(k):
            law = self._law(stream, path)
            ids: Ids = np.arange(len(law), dtype=np.uint32)
            key = target_key(stream.opening.seed, len(stream.tokens) + len(path))
            path.append(int(ids[coupled_choice(ids, law, key)]))
        return Draft(DraftTree.chain(np.array(path, dtype=np.uint32)), drafter="lm", coupled=True)

    def _sampled(self, stream: Stream, request: DraftRequest) -> Guess:
        assert stream.opening is not None
        parents = self.parents or tuple(range(request.num_draft_tokens))
        parents = parents[: request.num_draft_tokens]
        kind = DraftKind.SAMPLED if self.parents is None else DraftKind.SAMPLED_WITHOUT_REPLACEMENT
        us = uniforms(stream.opening.seed, len(stream.tokens), Purpose.DRAFT, len(parents) + 1)
        tokens: list[int] = []
        laws: dict[int, DraftLaw] = {}
        left: dict[int, Any] = {}
        for i, parent in enumerate(parents):
            if parent not in laws:
                law = self._law(stream, _path(tokens, parents, parent))
                ids = np.arange(len(law), dtype=np.uint32)
                laws[parent] = draft_law(ids, law, self.support or request.support)
                left[parent] = laws[parent].q.copy()
            x = draw(left[parent], float(us[i + 1]))
            tokens.append(int(laws[parent].ids[x]))
            if kind is DraftKind.SAMPLED_WITHOUT_REPLACEMENT:
                left[parent][x] = 0.0
        tree = DraftTree(np.array(tokens, dtype=np.uint32), np.array(parents, dtype=np.int64))
        sent = [self.reported(laws[node]) if self.reported else laws[node] for node in tree.inner_nodes]
        return Draft(tree, kind, tuple(sent), "lm")


def _path(tokens: list[int], parents: Sequence[int], node: int) -> list[int]:
    out: list[int] = []
    while node:
        out.append(tokens[node - 1])
        node = parents[node - 1]
    return out[::-1]
