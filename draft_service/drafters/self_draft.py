"""The target as its own drafter, in a cheaper precision: nothing to train, and it agrees with the target wherever
rounding does not decide. Pays where the target is served in more bits than the draft."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from draft_service.drafters.lm import LmDrafter, warm_drafter
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.draft_model import load_draft_model
from specdec.lm.networks import Dtype

if TYPE_CHECKING:
    from draft_service.config import DraftConfig


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> LmDrafter:
    """Loads `--target-model` in the dtype `argument`, else in that of drafts: blocking, seconds to minutes. Raises
    ConfigError."""
    assert config.target_model is not None, "checked by the configuration"
    load = partial(
        load_draft_model,
        config.target_model,
        target=None,
        dtype=cast(Dtype, argument or config.precision),
        device=config.device,
        network=config.network,
        head_ids=config.head_ids,
    )
    return warm_drafter(load, config, metrics, "self")
