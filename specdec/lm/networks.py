"""The networks there are, and which of them serves a model. A new one is a module with `build` and one entry in
`NETWORKS`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast, get_args

from specdec.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specdec.lm.network import Network

Dtype = Literal["float32", "bfloat16", "int8"]
AUTO = "auto"

# Best first. build(model, dtype) takes the weights over from `model`, which is of no use afterwards, and raises
# Unsupported, with the model untouched, where it cannot serve.
NETWORKS: dict[str, str] = {
    "native": "specdec.lm.native.decoder",
    "lean": "specdec.lm.lean",
    "stock": "specdec.lm.stock",
}

# The settings of whoever serves a model, as `specdec.edge.config` reads them.
DTYPE_OPTION = {"help": "of weights and KV; int8: of the weights, the rest is bfloat16", "choices": get_args(Dtype)}
NETWORK_OPTION = {"help": "what computes the model; auto: the fastest that can", "choices": (AUTO, *NETWORKS)}

_log = logging.getLogger(__name__)


class Unsupported(Exception):
    """This network cannot serve this model, dtype or device; another may."""


def build_network(name: str, model: PreTrainedModel, dtype: Dtype) -> Network:
    """The network `name`; "auto": the first that can serve, with a line in the log for each that cannot.

    Raises ConfigError naming `network` when it is unknown or cannot serve this model."""
    if name != AUTO and name not in NETWORKS:
        raise ConfigError("network", name, f"choose one of {', '.join((AUTO, *NETWORKS))}")
    reasons = []
    for candidate in [name] if name != AUTO else NETWORKS:
        try:
            network = _builder(candidate)(model, dtype)
        except Unsupported as reason:
            reasons.append(f"{candidate}: {reason}")
            continue
        if reasons:
            _log.info("network %s; not %s", candidate, "; ".join(reasons))
        return network
    raise ConfigError("network", name, f"cannot serve this model: {'; '.join(reasons)}")


def _builder(name: str) -> Callable[[PreTrainedModel, Dtype], Network]:
    return cast("Callable[[PreTrainedModel, Dtype], Network]", import_module(NETWORKS[name]).build)
