"""The exact law of what cycles emit, with ideal noise: drafts are enumerated, the production rule is
integrated over its uniforms, draws of the target are enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from specdec.core.acceptance import Rule, emitted
from specdec.core.draft import Draft, DraftKind
from specdec.core.verification import Verification, VerifyForm
from tests.core.integration import Floats, Law, outcome_law
from tests.core.toys import PLACEHOLDER, Tokens, Toy, drafts, pq_reply, sequence_law


@dataclass(frozen=True, eq=False)
class Cycling:
    """A rule at work on drafts of one kind and shape (parents in wire order)."""

    rule: Rule
    form: VerifyForm
    kind: DraftKind
    shape: Tokens

    def emissions(self, toy: Toy, context: Tokens) -> Law:
        """Law of the tokens that one cycle emits."""
        law: Law = {}
        for draft, mass in drafts(toy, self.kind, self.shape, context):
            judge = self._judge_y if self.form is VerifyForm.Y else self._judge_pq
            for tokens, m in judge(toy, draft, context).items():
                law[tokens] = law.get(tokens, 0.0) + mass * m
        return law

    def _judge_pq(self, toy: Toy, draft: Draft, context: Tokens) -> Law:
        verification, draws = pq_reply(toy, draft, context)

        def process(us: Floats) -> Tokens:
            return tuple(emitted(draft, self.rule(draft, verification, us)).tolist())

        law: Law = {}
        for tokens, mass in outcome_law(process, draft.tree.num_nodes).items():
            last = {tokens[-1]: 1.0} if tokens[-1] < PLACEHOLDER else draws[tokens[-1] - PLACEHOLDER]
            for token, m in last.items():
                law[(*tokens[:-1], token)] = law.get((*tokens[:-1], token), 0.0) + mass * m
        return law

    def _judge_y(self, toy: Toy, draft: Draft, context: Tokens) -> Law:
        """Every combination of draws; their dependence between nodes of one depth cannot matter, since one
        node at most is reached at each depth."""
        laws = [toy.p(context + tuple(draft.tree.path(node))) for node in range(draft.tree.num_nodes)]
        law: Law = {}
        for ys in product(*(np.flatnonzero(p).tolist() for p in laws)):
            verification = Verification(VerifyForm.Y, np.array(ys, np.uint32))
            tokens = tuple(emitted(draft, self.rule(draft, verification, np.zeros(len(ys)))).tolist())
            mass = float(np.prod([p[y] for p, y in zip(laws, ys, strict=True)]))
            law[tokens] = law.get(tokens, 0.0) + mass
        return law

    def one_cycle(self, toy: Toy, context: Tokens, length: int) -> Law:
        """Law of `length` tokens: one cycle, then the target alone."""
        law: Law = {}
        for tokens, mass in self.emissions(toy, context).items():
            head = tokens[:length]
            for rest, m in sequence_law(toy, context + head, length - len(head)).items():
                law[head + rest] = law.get(head + rest, 0.0) + mass * m
        return law

    def many_cycles(self, toy: Toy, context: Tokens, length: int) -> Law:
        """Law of `length` tokens: as many cycles as it takes, each with fresh noise."""
        emissions = cache(lambda c: self.emissions(toy, c))

        @cache
        def law_after(context: Tokens, length: int) -> Law:
            if length <= 0:
                return {(): 1.0}
            law: Law = {}
            for tokens, mass in emissions(context).items():
                head = tokens[:length]
                for rest, m in law_after(context + head, length - len(head)).items():
                    law[head + rest] = law.get(head + rest, 0.0) + mass * m
            return law

        return law_after(context, length)

    def expected_accepted(self, toy: Toy) -> float:
        return sum(mass * (len(tokens) - 1) for tokens, mass in self.emissions(toy, ()).items())
