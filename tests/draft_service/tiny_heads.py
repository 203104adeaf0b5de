"""Random heads for a tiny target, its true features, and the heads computed slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from draft_service.config import DraftConfig
from draft_service.drafters import DraftJob
from draft_service.session import DraftSession
from specdec.core.features import FeatureRows
from specdec.core.sampling import SamplingParams
from specdec.lm.draft_folder import read_draft_folder, write_draft_folder
from specdec.lm.features import decode, encode
from specdec.lm.heads import EagleHead, MedusaHeads, decoder_config, rms_norm
from specdec.lm.loading import LoadedModel, load_model, read_config, read_weights
from specdec.lm.runner import Runner, Segment
from tests.draft_service.conftest import Clock
from tests.draft_service.jobs import GREEDY, ids
from tests.tiny_models import make_tiny_model

ACCURACIES = [[0.6, 0.3, 0.1], [0.5, 0.2, 0.1], [0.4, 0.2], [0.3, 0.1]]


def write_head(folder: Path, kind: str, target: Path, loaded: LoadedModel, *, seed: int = 0, **settings: Any) -> Path:
    """A random head with clear opinions. settings: of draft.json, `feature_layers` and `head_ids` among them."""
    config = read_config(str(target), None)
    layers = settings.setdefault("feature_layers", [loaded.num_layers])
    torch.manual_seed(seed)
    module: torch.nn.Module
    if kind == "medusa":
        module = MedusaHeads(config.hidden_size, 4)
    else:
        module = EagleHead(config.hidden_size, len(layers), decoder_config(config))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1))
    write_draft_folder(folder, _settings(kind, target, loaded) | settings, module.state_dict(), "", int8=False)
    return folder


def make_oracle(target: Path, head: Path, vocab_size: int) -> tuple[Path, Path]:
    """A target, and an EAGLE head that is it: one layer behind embeddings that a norm does not change, and a window so
    short that nobody misses the first token, which has no row in a head."""
    make_tiny_model(target, "mistral", vocab_size, layers=1, sliding_window=8)
    weights = {name: tensor.bfloat16().float() for name, tensor in load_file(target / "model.safetensors").items()}
    table = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = table / table.square().mean(-1, keepdim=True).sqrt()
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    loaded = load_model(str(target), dtype="float32", device="cpu")
    size, layer = loaded.hidden_size, "model.layers.0."
    tensors = {
        "fuse.weight": torch.cat([torch.zeros(size, size), torch.eye(size)], dim=1),
        "norm_feature.weight": torch.ones(size),
        "norm_embedding.weight": torch.ones(size),
        **{name.replace(layer, "layer."): tensor for name, tensor in weights.items() if name.startswith(layer)},
    }
    settings = _settings("eagle", target, loaded) | {"feature_layers": [1]}
    write_draft_folder(head, settings, tensors, "", int8=False)
    return target, head


def _settings(kind: str, target: Path, loaded: LoadedModel) -> dict[str, Any]:
    return {
        "kind": kind,
        "target": target.name,
        "target_base_fingerprint": loaded.base_fingerprint,
        "tokenizer_hash": loaded.tokenizer_hash,
        "hidden_size": loaded.hidden_size,
        "vocab_size": loaded.vocab_size,
        "head_ids": None,
    }


def config(entry: str, target: Path, **fields: Any) -> DraftConfig:
    settings = {"dtype": "float32", "kv_tokens": 8192, "max_draft_tokens": 64, **fields}
    return DraftConfig(drafters=(entry,), target_model=str(target), **settings)


class Features:
    """What the target knows of contexts: its hidden states of all tokens but the last."""

    def __init__(self, loaded: LoadedModel, layers: Sequence[int]) -> None:
        self._runner = Runner(loaded, 4096)
        self._layers = layers

    def of(self, context: Sequence[int], start: int = 0) -> FeatureRows:
        """From position `start` on."""
        rows = len(context) - 1
        sequence = self._runner.new_sequence()
        [computed] = self._runner.compute([Segment(sequence, ids(context[:-1]), tapped=rows)], self._layers)
        sequence.discard()
        return FeatureRows(start, rows - start, encode(computed.hidden[start:]))


def feature_job(
    features: Features,
    context: Sequence[int],
    k: int,
    params: SamplingParams = GREEDY,
    session: DraftSession | None = None,
    *,
    start: int = 0,
    lag: int = 0,
    **fields: Any,
) -> DraftJob:
    """A job with all features from `start` on but the last `lag`."""
    session = session or DraftSession()
    session.context = ids(context)
    session.features = features.of(context, start).before(len(context) - 1 - lag)
    return DraftJob(session, session.context, k, params, **fields)


def ticking(clock: Clock, compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute`, in a second of the clock."""

    def slowly(*arguments: Any) -> Any:
        clock.now += 1.0
        return compute(*arguments)

    return slowly


class SlowHead:
    """The modules that heads are trained as, on whole sequences, keeping nothing."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._draft = read_draft_folder(folder)
        config = read_config(str(target), None)
        model: Any = read_weights(str(target), config, "float32", "cpu")
        self._embedding, self._norm = model.model.embed_tokens.weight, model.model.norm.weight
        self._head, self._eps = model.lm_head.weight, config.rms_norm_eps
        self.layers = tuple(self._draft.settings["feature_layers"])
        self.size = int(config.hidden_size)
        if self._draft.kind == "medusa":
            self._module: Any = MedusaHeads(self.size, 4)
        else:
            self._module = EagleHead(self.size, len(self.layers), decoder_config(config))
        self._module.load_state_dict(self._draft.tensors)
        self._module.eval()

    def eagle(self, job: DraftJob, path: Sequence[int] = ()) -> NDArray[np.float32]:
        """float32[vocabulary]: logits of the draft token behind `path`."""
        features = job.session.features
        tokens = [int(token) for token in job.context[features.offset + 1 :]] + list(path)
        with torch.inference_mode():
            g = self._module.gather(torch.from_numpy(decode(features.data, len(self.layers), self.size)))
            while True:
                embedded = self._embedding[torch.tensor(tokens[: len(g)])]
                out = self._module(g[None], embedded[None], torch.arange(len(g))[None])[0]
                if len(g) == len(tokens):
                    return self._logits(out[-1])
                g = torch.cat([g, out[-1:]])

    def medusa(self, job: DraftJob, head: int) -> NDArray[np.float32]:
        features = job.session.features
        with torch.inference_mode():
            hidden = torch.from_numpy(decode(features.data, len(self.layers), self.size))[-1, -1]
            state = self._module(rms_norm(hidden, self._norm, self._eps))[head]
            logits: NDArray[np.float32] = (self._head @ state).numpy()
        return logits

    def _logits(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = (self._head @ rms_norm(hidden, self._norm, self._eps)).numpy()
        return logits
