"""Loading language models as drafters: whole models or draft folders, heads cut to fewer ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from specdec.core.errors import ConfigError
from specdec.core.tree import Ids
from specdec.lm.draft_folder import DraftFolder, is_draft_folder, read_draft_folder
from specdec.lm.id_map import ALL, IdMap, read_head_ids
from specdec.lm.loading import (
    LoadedModel,
    check_dtype,
    read_config,
    read_end_ids,
    read_special_ids,
    read_vocabulary,
    read_weights,
    serve_model,
)
from specdec.lm.networks import AUTO, Dtype
from specdec.lm.stored_tensors import EMBEDDING, FINAL_NORM, HEAD, borrowed_tensors
from specdec.lm.translation import Translation, read_tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class DraftLM:
    """A model that drafts. loaded: its vocabulary is the target's, which its drafts are in. ids: what the columns of
    its logits stand for; None: column v is token v. translation: of contexts into its own ids; None: they are the
    same."""

    loaded: LoadedModel
    ids: IdMap | None = None
    translation: Translation | None = None


def load_draft_model(
    path: str,
    *,
    target: str | None,
    dtype: Dtype,
    device: str,
    num_layers: int | None = None,
    network: str = AUTO,
    head_ids: str | None = None,
    tli: bool = False,
) -> DraftLM:
    """path: what `load_model` takes, or a draft folder of kind lm, whose embeddings, head and, unless it has one,
    final norm are those of `target`, a folder or hub name.

    head_ids: as `read_head_ids` takes it, in the target's ids; None: the draft folder's own, else all; ALL. tli: the
    model may have another tokenizer than `target`: its head is cut to the tokens of both. The rest as for
    `load_model`. Fingerprints are of all that was combined.

    Raises ConfigError as `load_model` does, and where folder and target do not fit each other."""
    check_dtype(dtype)
    if is_draft_folder(path):
        folder = read_draft_folder(path)
        model = _combined(folder, target, dtype, device, num_layers)
        head_ids, tokenizer = head_ids or folder.head_ids, cast(str, target)
    else:
        model, tokenizer = read_weights(path, read_config(path, num_layers), dtype, device), path
    ids, translation = None, None
    if tli:
        assert target is not None, "checked by the configuration"
        size, _ = _vocabulary(target)
        translation = Translation(read_tokenizer(target), read_tokenizer(tokenizer), size, int(model.config.vocab_size))
        ids = translation.shared
    if head_ids not in (None, ALL):
        ids = _cut(ids, head_ids, target or tokenizer)
    if ids is not None:
        cut_head(model, ids.own_ids)
    loaded = serve_model(model, path, dtype=dtype, device=device, network=network, tokenizer=tokenizer)
    if ids is not None:
        loaded = _identified(loaded, ids, target if tli else None)
    return DraftLM(loaded, ids, translation)


def cut_head(model: Any, rows: Ids) -> None:
    """The head of a model of `transformers` keeps these rows, uint32[n], as its outputs 0 to n - 1. Input embeddings
    stay whole: a tied head becomes a matrix of its own."""
    head = model.get_output_embeddings()
    kept = torch.from_numpy(rows.astype("int64")).to(head.weight.device)
    cut = nn.Linear(head.in_features, len(rows), bias=head.bias is not None, device="meta")
    cut.weight = nn.Parameter(head.weight.detach()[kept], requires_grad=False)
    if head.bias is not None:
        cut.bias = nn.Parameter(head.bias.detach()[kept], requires_grad=False)
    model.set_output_embeddings(cut)
    model.config.tie_word_embeddings = False


def _cut(ids: IdMap | None, head_ids: str | None, tokenizer: str) -> IdMap:
    """The columns left of `ids`, None: of a whole head."""
    assert head_ids is not None, "asked for only where there is one"
    size, _ = _vocabulary(tokenizer)
    wanted = read_head_ids(head_ids, size, {*read_end_ids(tokenizer), *read_special_ids(tokenizer)})
    return IdMap(wanted) if ids is None else ids.only(wanted.tolist())


def _identified(loaded: LoadedModel, ids: IdMap, target: str | None) -> LoadedModel:
    """With the ids in its fingerprint. target: whose vocabulary the drafts are in, None: the model's own."""
    digest = hashlib.sha256(loaded.fingerprint.encode())
    digest.update(ids.target_ids.tobytes() + ids.own_ids.tobytes())
    loaded = replace(loaded, fingerprint=digest.hexdigest())
    if target is None:
        return loaded
    size, tokenizer_hash = _vocabulary(target)
    return replace(loaded, vocab_size=size, tokenizer_hash=tokenizer_hash, eos_ids=read_end_ids(target))


def _vocabulary(path: str) -> tuple[int, str]:
    return read_vocabulary(path, int(read_config(path, None).vocab_size))


def _combined(
    folder: DraftFolder, target: str | None, dtype: Dtype, device: str, num_layers: int | None
) -> PreTrainedModel:
    """The model of a draft folder with what it borrows."""
    name = str(folder.path)
    if folder.kind != "lm":
        raise ConfigError("model", name, f"is a draft folder of kind {folder.kind}: serve it as {folder.kind}:FOLDER")
    if target is None:
        raise ConfigError("target_model", None, f"{name} holds only what is not its target's: give the target's folder")
    if num_layers is not None:
        raise ConfigError("num_layers", num_layers, f"{name} is a draft folder, which is served whole")
    settings: dict[str, Any] = dict(folder.settings["config"])
    try:
        config: Any = AutoConfig.for_model(settings.pop("model_type"), **settings)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError("model", name, f"its config is none of transformers: {error}") from error
    _check_target(folder, target, config)
    borrowed = borrowed_tensors(target)
    tensors = {EMBEDDING: borrowed[EMBEDDING], FINAL_NORM: borrowed[FINAL_NORM], **folder.tensors}
    config.tie_word_embeddings = borrowed[HEAD] is borrowed[EMBEDDING]
    if not config.tie_word_embeddings:
        tensors.setdefault(HEAD, borrowed[HEAD])
    model = read_weights(name, config, dtype, device, tensors)
    expected = set(model.state_dict()) - ({HEAD} if config.tie_word_embeddings else set())
    if expected != set(tensors):
        wrong = ", ".join(sorted(expected ^ set(tensors)))
        raise ConfigError("model", name, f"its tensors are not those of its config: {wrong}")
    return model


def _check_target(folder: DraftFolder, target: str, config: Any) -> None:
    """Raises ConfigError naming both where the folder was trained for a target of another shape or vocabulary."""
    theirs = read_config(target, None)
    _, tokenizer_hash = _vocabulary(target)
    for what, mine, other in (
        ("hidden size", folder.settings["hidden_size"], theirs.hidden_size),
        ("hidden size of its config", config.hidden_size, theirs.hidden_size),
        ("width of the vocabulary", config.vocab_size, theirs.vocab_size),
        ("tokenizer hash", folder.settings["tokenizer_hash"], tokenizer_hash),
    ):
        if mine != other:
            remedy = f"was trained for {folder.settings['target']}: {what} {mine}, not {other} as {Path(target).name}"
            raise ConfigError("model", str(folder.path), remedy)
