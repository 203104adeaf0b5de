"""EAGLE: the target's features continued by one decoder layer, as a chain or a static tree (Li et al. 2024, "EAGLE:
speculative sampling requires rethinking feature uncertainty")."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from draft_service.drafters import DraftJob
from draft_service.drafters.eagle_drafter import EagleDrafter, load_head
from draft_service.drafters.feature_model import read_accuracies
from draft_service.drafters.growth import StaticGrowth
from draft_service.drafters.static_tree import TreeShape, best_tree
from specdec.lm.id_map import IdMap

if TYPE_CHECKING:
    from draft_service.config import DraftConfig
    from specdec.edge.telemetry import ReplicaMetrics

NAME = "eagle"


class EagleShapes:
    """Of drafts of so many tokens. accuracies: see `best_tree`, of a static tree; none: chains."""

    def __init__(self, accuracies: tuple[tuple[float, ...], ...] = ()) -> None:
        self._tree = cache(partial(best_tree, accuracies)) if accuracies else TreeShape.chain

    def new_growth(self, id_map: IdMap | None, job: DraftJob, limit: int) -> StaticGrowth:
        return StaticGrowth(job, NAME, id_map, self._tree(limit))


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> EagleDrafter:
    """Loads the head: blocking, seconds. Chains; where its folder has the setting `tree`, static trees by the
    `accuracies` measured. Raises ConfigError."""
    head = load_head(config, argument)
    accuracies = read_accuracies(head.parts.folder) if head.parts.folder.settings.get("tree") else ()
    new_growth = partial(EagleShapes(accuracies).new_growth, head.parts.target.id_map)
    drafter = EagleDrafter(NAME, head, new_growth, metrics, tree=bool(accuracies), token_budget=config.token_budget)
    drafter.warm_up()
    return drafter
