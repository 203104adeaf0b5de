"""Medusa: heads that guess the next tokens all at once from the target's last hidden state (Cai et al. 2024, "Medusa:
simple LLM inference acceleration framework with multiple decoding heads")."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from draft_service.drafters import DraftJob
from draft_service.drafters.feature_model import FeatureModel, read_accuracies, read_feature_model, served
from draft_service.drafters.forward_cost import ForwardCost
from draft_service.drafters.growth import StaticGrowth, extend_all, refusal
from draft_service.drafters.static_tree import TreeShape, best_tree
from draft_service.session import DraftSession
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import ConfigError, InvalidArgument, SpecdecError
from specdec.core.tree import EMPTY_TREE
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.answers import native_laws
from specdec.lm.heads import rms_norm
from specdec.lm.linear import Linear, make_linear

if TYPE_CHECKING:
    from draft_service.config import DraftConfig

NAME = "medusa"
_NOTHING = Draft(EMPTY_TREE, drafter=NAME)
# Where no accuracies were measured: of candidates by rank, the same for every head.
_GUESSED = (0.5, 0.15, 0.08, 0.05, 0.03)


class MedusaModel:
    """`specdec.lm.heads.MedusaHeads` between the target's own final norm and head."""

    def __init__(self, model: FeatureModel) -> None:
        """Raises ConfigError for a folder without heads."""
        self.parts = model
        folder, dtype, device = model.folder, model.dtype, model.device
        self._heads: list[Linear] = []
        while (name := f"heads.{len(self._heads)}.weight") in folder.tensors:
            bias = folder.tensors[name.replace("weight", "bias")]
            weight = served(folder.tensors[name], dtype, device)
            self._heads.append(make_linear(weight, served(bias, dtype, device), dtype))
        if not self._heads:
            raise ConfigError("drafters", str(folder.path), "model.safetensors has no heads.0.weight")
        self._norm, self._eps = model.target.norm, model.target.eps
        self._head = make_linear(model.target.head, None, dtype)
        self.columns = model.target.columns
        last = int(model.target.config.num_hidden_layers)
        if last not in model.layers:
            raise ConfigError("drafters", str(folder.path), f"feature_layers lack the last layer, {last}")
        self.last = model.layers.index(last)

    @property
    def num_heads(self) -> int:
        return len(self._heads)

    def logits(self, hidden: torch.Tensor, num_heads: int) -> torch.Tensor:
        """float32[n, num_heads, padded columns] of the first heads. hidden: float32[n, H], the target's last."""
        with torch.inference_mode():
            normed = rms_norm(hidden, self._norm, self._eps).to(self._norm.dtype)
            states = [normed + functional.silu(head(normed)) for head in self._heads[:num_heads]]
            logits: torch.Tensor = self._head(torch.stack(states, dim=1))
        return logits.float()


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A job's growth; hidden: float32[1, H]; first: the head that guesses its first draft token; depth: of its tree."""

    growth: StaticGrowth
    hidden: torch.Tensor
    first: int
    depth: int


class MedusaDrafter:
    """Static trees of the heads' likeliest tokens, CHOSEN whatever was asked for, out of one forward that needs no keys
    or values. The nodes are those that measured accuracies make the likeliest. Where the last features are missing,
    later heads take the first ones' places."""

    kv_free = 0
    kv_total = 0

    def __init__(
        self, model: MedusaModel, metrics: ReplicaMetrics, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._heads = model
        self._metrics = metrics
        self._clock = clock
        self._cost = ForwardCost()
        accuracies = read_accuracies(model.parts.folder)[: model.num_heads] or (_GUESSED,) * model.num_heads
        self._shape: Callable[[int, int], TreeShape] = cache(lambda first, size: best_tree(accuracies[first:], size))
        self.model = model.parts.identity(tree=True, max_context=0)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        begun = [self._begin(job) for job in jobs]
        works = self._in_time([work for work in begun if isinstance(work, _Work)])
        if works:
            self._forward(works)
        return [work.growth.outcome or _NOTHING if isinstance(work, _Work) else work for work in begun]

    def close(self, session: DraftSession) -> None:
        """Nothing is kept."""

    def warm_up(self) -> None:
        """The first forwards are slow and say nothing about the later ones."""
        native_laws()
        for attempt in range(2):
            begun = self._clock()
            self._heads.logits(torch.zeros(1, self._heads.parts.hidden_size, device=self._heads.parts.device), 1)
            if attempt:
                self._cost.observe(1, self._clock() - begun)

    def _begin(self, job: DraftJob) -> _Work | Draft | SpecdecError:
        if (error := refusal(job, self.model.vocab_size)) is not None:
            return error
        limit = min(job.num_draft_tokens, self.model.max_context - len(job.context))
        features = job.session.features.before(len(job.context) - 1)
        first = len(job.context) - 1 - features.end
        if limit < 1 or not features.rows:
            return _NOTHING
        shape = self._shape(first, limit)
        if not shape.num_draft_tokens:
            return _NOTHING
        try:
            hidden = self._heads.parts.decode(features.tail(1))[:, self._heads.last]
        except InvalidArgument as problem:
            return problem
        growth = StaticGrowth(replace(job, kind=DraftKind.CHOSEN), NAME, self._heads.parts.target.id_map, shape)
        return _Work(growth, hidden, first, shape.depth)

    def _in_time(self, works: list[_Work]) -> list[_Work]:
        """Those that a forward of all of them would serve in time."""
        now = self._clock()
        seconds = self._cost.estimate(sum(work.first + work.depth for work in works))
        late = [work for work in works if work.growth.job.deadline < now + seconds]
        if any(work.growth.job.deadline > now for work in late):
            self._cost.doubt()
        return [work for work in works if work not in late]

    def _forward(self, works: list[_Work]) -> None:
        begun = self._clock()
        heads = max(work.first + work.depth for work in works)
        logits = self._heads.logits(torch.cat([work.hidden for work in works]), heads)
        running = list(zip(works, logits, strict=True))
        draws = level = 0
        while running:
            rows = [each[[work.first + level] * len(work.growth.frontier)] for work, each in running]
            draws += extend_all([work.growth for work, _ in running], rows, self._heads.columns).count(None)
            running = [(work, each) for work, each in running if work.growth.outcome is None]
            level += 1
        rows_computed, seconds = len(works) * heads, self._clock() - begun
        self._cost.observe(rows_computed, seconds)
        self._metrics.draws.add(draws)
        self._metrics.forwards.add()
        self._metrics.rows.add(rows_computed)
        self._metrics.batch_size.record(len(works))
        self._metrics.compute_seconds.record(seconds)


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> MedusaDrafter:
    """Loads the heads: blocking, seconds. Raises ConfigError."""
    assert argument is not None, "checked by the configuration"
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    drafter = MedusaDrafter(MedusaModel(read_feature_model(argument, "medusa", config)), metrics)
    drafter.warm_up()
    return drafter
