"""Draft trees in the making, level by level: what is asked of a head's logits, and what becomes of the answers. They
know nothing of weights or of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.drafters import DraftJob
from draft_service.drafters.static_tree import TreeShape
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import InvalidArgument, SpecdecError
from specdec.core.laws import draft_law, draw_siblings
from specdec.core.randomness import Purpose, target_key, target_noise, uniforms
from specdec.core.tree import DraftTree, Ids
from specdec.lm.answers import answer_all
from specdec.lm.histories import Histories
from specdec.lm.id_map import IdMap
from specdec.lm.question import Answer, Question

COUPLED_CANDIDATES = 256  # of a law, that compete under the target's noise (algorithms.md, section 6)
Floats = NDArray[np.float64]


class Growth:
    """A tree for one job. `outcome` is None until it is finished. `frontier`: the nodes whose logits are wanted next;
    node 0 is the root, node i has token tokens[i - 1] and parent parents[i - 1].

    id_map: of the head's columns, None where they are the target's ids."""

    max_rows = 0  # nodes other than the root whose logits it may ask for

    def __init__(self, job: DraftJob, drafter: str, id_map: IdMap | None) -> None:
        self.job = job
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.frontier: list[int] = [0]
        self.outcome: Draft | SpecdecError | None = None
        self._name = drafter
        self._map = id_map
        self._params = job.params if id_map is None else id_map.params(job.params)
        if job.params.greedy:  # its law is a point mass: candidates and scores are those of the raw softmax
            self._params = replace(self._params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._context = self._columns(job.context)

    @property
    def likeliest(self) -> int:
        """How many of the likeliest tokens of each law are wanted."""
        raise NotImplementedError

    def question(self, logits: torch.Tensor) -> Question:
        """What the frontier's children depend on. logits: float32[len(frontier), columns]."""
        paths = tuple(tuple(self._columns(self._path(node)).tolist()) for node in self.frontier)
        histories = Histories(self._context, self.job.turn_start, paths)
        return Question(logits, histories, self._params, likeliest=self.likeliest)

    def extend(self, answer: Answer) -> None:
        """Record the frontier's children and move on to the next one. answer: to `question`."""
        raise NotImplementedError

    def finish(self) -> None:
        """What there is, is the draft."""
        raise NotImplementedError

    def depth(self, node: int) -> int:
        return len(self._path(node))

    def _path(self, node: int) -> Ids:
        out = []
        while node:
            out.append(self.tokens[node - 1])
            node = self.parents[node - 1]
        return np.array(out[::-1], dtype=np.uint32)

    def _candidates(self, answer: Answer, i: int) -> tuple[Ids, Floats]:
        """(target ids uint32[m] rising, their probabilities, above 0) at frontier node i."""
        ids, p = answer.likeliest[i]
        ids = ids if self._map is None else self._map.target_ids[ids]
        return ids[p > 0], p[p > 0]

    def _columns(self, ids: Ids) -> Ids:
        return ids if self._map is None else self._map.columns(ids)

    def _add(self, token: int, parent: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens)

    def _goes_on(self, node: int) -> bool:
        """Nothing follows an id that ends the turn."""
        return self.tokens[node - 1] not in self.job.params.end_ids


class StaticGrowth(Growth):
    """A tree whose shape is fixed before anything is drawn; a chain is one. It has less only where a law has too few
    tokens, behind an id that ends the turn, and where time ran out: none of that depends on the token itself.

    CHOSEN: the likeliest children; above temperature 0 those that come first under the target's noise, so that the
    first is what the target would draw of this law (section 6). SAMPLED: drawn one after another without replacement
    from the law cut to the support, number i of (seed, base) for node i (section 3)."""

    def __init__(self, job: DraftJob, drafter: str, id_map: IdMap | None, shape: TreeShape) -> None:
        super().__init__(job, drafter, id_map)
        self._shape = shape
        self._of_shape = [0]  # the node of the shape that each node stands for
        self._laws: list[DraftLaw] = []
        self._shares = [1.0]  # of each node, the probability that it and all before it are right
        self._sampled = job.kind is not DraftKind.CHOSEN and not job.params.greedy
        numbers = shape.num_draft_tokens + 1
        self._numbers = uniforms(job.seed, len(job.context), Purpose.DRAFT, numbers) if self._sampled else None
        self.max_rows = sum(1 for children in shape.children[1:] if children)

    @property
    def likeliest(self) -> int:
        if self._sampled:
            return self.job.support
        return COUPLED_CANDIDATES if not self.job.params.greedy else 1 + max(self._shape.ranks, default=0)

    def extend(self, answer: Answer) -> None:
        new: list[int] = []
        for i, node in enumerate(self.frontier):
            wanted = self._shape.children[self._of_shape[node]]
            new += (self._draw if self._sampled else self._choose)(*self._candidates(answer, i), node, wanted)
        self.frontier = [node for node in new if self._shape.children[self._of_shape[node]] and self._goes_on(node)]
        if not self.frontier:
            self.finish()

    def finish(self) -> None:
        tree = DraftTree(np.array(self.tokens, dtype=np.uint32), np.array(self.parents, dtype=np.int64))
        kind = DraftKind.CHOSEN
        if self._sampled and self.tokens:
            kind = DraftKind.SAMPLED if tree.is_chain else DraftKind.SAMPLED_WITHOUT_REPLACEMENT
        coupled = bool(self.tokens) and not self._sampled and not self.job.params.greedy
        score = 0.0 if self._sampled else sum(self._shares[1:])  # by what was drawn no draft may be chosen (section 9)
        self.outcome = Draft(tree, kind, tuple(self._laws), self._name, score, coupled)

    def _choose(self, ids: Ids, p: Floats, node: int, wanted: Sequence[int]) -> list[int]:
        order = ranked(ids, p, self._key(node))
        new = []
        for place in wanted:
            rank = self._shape.ranks[place - 1]
            if rank < len(order):
                at = order[rank]
                new.append(self._place(int(ids[at]), node, place))
                self._shares.append(self._shares[node] * float(p[at]))
        return new

    def _draw(self, ids: Ids, p: Floats, node: int, wanted: Sequence[int]) -> list[int]:
        assert self._numbers is not None
        law = draft_law(ids, p, self.job.support)
        first = len(self.tokens) + 1
        drawn = draw_siblings(law, self._numbers[first : first + len(wanted)])
        self._laws.append(law)
        return [self._place(int(law.ids[at]), node, place) for at, place in zip(drawn, wanted, strict=False)]

    def _place(self, token: int, parent: int, place: int) -> int:
        self._of_shape.append(place)
        return self._add(token, parent)

    def _key(self, node: int) -> int | None:
        if self.job.params.greedy:
            return None
        return target_key(self.job.seed, len(self.job.context) + self.depth(node))


def ranked(ids: Ids, p: Floats, key: int | None) -> list[int]:
    """Indices of the tokens `ids`, rising, by falling p, ties to the lowest ids; or, with the key of a position, in the
    order in which they would be drawn without replacement with the target's noise there."""
    with np.errstate(over="ignore"):  # subnormal p: infinitely late, rightly
        late = -p if key is None else target_noise(key, ids) / p
    order: list[int] = np.argsort(late, kind="stable").tolist()
    return order


def extend_all(growths: Sequence[Growth], logits: Sequence[torch.Tensor], width: int) -> list[SpecdecError | None]:
    """Let each growth go on by the logits of its frontier: float32[len(frontier), padded columns]. width: columns.
    One result per growth: None, or the EmptyLaw or BadLogits that has become its outcome."""
    questions = [growth.question(rows) for growth, rows in zip(growths, logits, strict=True)]
    errors: list[SpecdecError | None] = []
    for growth, answer in zip(growths, answer_all(questions, width), strict=True):
        errors.append(None if isinstance(answer, Answer) else answer)
        if isinstance(answer, Answer):
            growth.extend(answer)
        else:
            growth.outcome = answer
    return errors


def refusal(job: DraftJob, vocab_size: int) -> InvalidArgument | None:
    """What makes a draft for this job impossible."""
    if not len(job.context):
        return InvalidArgument("token_ids", [], "a drafter with a head needs at least one token of context")
    biased = max((id_ for id_, _ in job.params.logit_bias), default=0)
    if biased >= vocab_size:
        return InvalidArgument("logit_bias_ids", biased, f"must be below the vocabulary size {vocab_size}")
    return None
