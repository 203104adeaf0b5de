"""The turn that a GenerateRequest asks for: every parameter checked, every default filled in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.parameter_ranges import MAX_COUNT, RANGES, Range
from coordinator.tokenizer import TextCodec
from coordinator.turn import Turn
from protos.generation_pb2 import GenerateRequest
from specdec.core.errors import InvalidArgument
from specdec.core.sampling import SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024  # of one stop string
MAX_IDS = 1024  # entries of logit_bias or of stop_token_ids: they travel to each replica
VERIFICATIONS = ("block", "traversal", "rejection", "coupled", "typical")
TURN_FIELDS = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos",
    "n", "logprobs", "num_draft_tokens", "drafter", "verification",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What the pools can serve now. max_context: tokens; max_num_draft_tokens: of one cycle; drafters:
    names."""

    max_context: int
    max_num_draft_tokens: int
    drafters: tuple[str, ...]


def turn_of(request: GenerateRequest, codec: TextCodec, limits: Limits, new_seed: Callable[[], int]) -> Turn:
    """`new_seed` gives 64 random bits, for a turn without a seed. `n` is not a turn's business. Raises
    InvalidArgument."""
    params = _params(request, codec)
    default_tokens = min(codec.defaults.max_new_tokens or limits.max_context, limits.max_context)
    max_tokens = min(number_of(request, "max_tokens", RANGES["max_tokens"], default_tokens), MAX_COUNT)
    if params.min_tokens > max_tokens:
        raise InvalidArgument("min_tokens", params.min_tokens, f"must not exceed max_tokens = {max_tokens}")
    draft_range = Range(0, limits.max_num_draft_tokens, integer=True, note="; 0 turns drafting off")
    seeded = request.HasField("seed")
    return Turn(
        params=params,
        max_tokens=max_tokens,
        seed=request.seed if seeded else new_seed(),
        seeded=seeded,
        stop=_stop_strings(request.stop),
        eos_ids=codec.eos_ids,
        ignore_eos=request.ignore_eos,
        num_draft_tokens=number_of(request, "num_draft_tokens", draft_range, None),
        drafter=_drafter(request.drafter, limits.drafters),
        verification=_verification(request.verification),
    )


def fit(turn: Turn, prompt_tokens: int, max_context: int) -> Turn:
    """The turn with max_tokens cut to the room that its prompt leaves in the context (prompt_tokens:
    everything before the first output token). Raises InvalidArgument where no output token fits, or fewer
    than min_tokens."""
    room = max_context - prompt_tokens
    if room < 1:
        remedy = f"the context holds {max_context} tokens: shorten it to at most {max_context - 1}"
        raise InvalidArgument("prompt", f"{prompt_tokens} tokens", remedy)
    if turn.params.min_tokens > room:
        raise InvalidArgument("min_tokens", turn.params.min_tokens, f"the prompt leaves room for {room}")
    return replace(turn, max_tokens=min(turn.max_tokens, room))


def _params(request: GenerateRequest, codec: TextCodec) -> SamplingParams:
    def number(field: str, default: Any) -> Any:
        return number_of(request, field, RANGES[field], default)

    defaults = codec.defaults
    check_ids("stop_token_ids", request.stop_token_ids, codec.vocab_size, MAX_IDS)
    eos_ids = () if request.ignore_eos else codec.eos_ids
    params = SamplingParams(
        temperature=number("temperature", defaults.temperature),
        top_k=max(number("top_k", defaults.top_k), 0),
        top_p=number("top_p", defaults.top_p),
        min_p=number("min_p", defaults.min_p),
        repetition_penalty=number("repetition_penalty", defaults.repetition_penalty),
        presence_penalty=number("presence_penalty", 0.0),
        frequency_penalty=number("frequency_penalty", 0.0),
        logit_bias=_logit_bias(request, codec.vocab_size),
        min_tokens=number("min_tokens", 0),
        end_ids=tuple(sorted({*eos_ids, *request.stop_token_ids})),
        logprobs=number("logprobs", None),
    )
    if params.top_k >= codec.vocab_size:
        params = replace(params, top_k=0)
    _refuse_empty_law(params, codec.vocab_size)
    return params


def _logit_bias(request: GenerateRequest, vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = sorted(request.logit_bias.items())
    check_ids("logit_bias", [token_id for token_id, _ in bias], vocab_size, MAX_IDS)
    for token_id, value in bias:
        if not math.isfinite(value) and value != -math.inf:
            raise InvalidArgument("logit_bias", {token_id: value}, "must be finite, or -inf to ban the token")
    return tuple(bias)


def _refuse_empty_law(params: SamplingParams, vocab_size: int) -> None:
    banned = {token_id for token_id, value in params.logit_bias if value == -math.inf}
    if len(banned) == vocab_size:
        raise InvalidArgument("logit_bias", f"-inf on {len(banned)} ids", "leave at least one token possible")
    if params.min_tokens and len(banned | set(params.end_ids)) == vocab_size:
        remedy = "logit_bias leaves only ids that end the turn: allow another, or drop min_tokens"
        raise InvalidArgument("min_tokens", params.min_tokens, remedy)


def _stop_strings(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidArgument("stop", f"{len(stops)} strings", f"give at most {MAX_STOP_STRINGS}")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidArgument("stop", stop[:40], f"each must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(dict.fromkeys(stops))


def _drafter(name: str, served: tuple[str, ...]) -> str | None:
    if name in ("", "auto"):
        return None
    if name not in served:
        raise InvalidArgument("drafter", name, f"choose auto or one of: {', '.join(served) or '(none is served)'}")
    return name


def _verification(name: str) -> str | None:
    if name and name not in VERIFICATIONS:
        raise InvalidArgument("verification", name, f"unknown: choose one of {', '.join(VERIFICATIONS)}")
    return name or None


def number_of(request: GenerateRequest, field: str, allowed: Range, default: Any) -> Any:
    """The field's value, or the default where it is unset. Raises InvalidArgument where it is not allowed."""
    if not request.HasField(field):
        return default
    value = getattr(request, field)
    if not allowed.holds(value):
        raise InvalidArgument(field, value, allowed.remedy())
    return value


def check_ids(field: str, ids: Sequence[int], vocab_size: int, at_most: int | None = None) -> None:
    """Raises InvalidArgument where there are too many ids, or one is outside the vocabulary."""
    if at_most is not None and len(ids) > at_most:
        raise InvalidArgument(field, f"{len(ids)} ids", f"give at most {at_most}")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidArgument(field, wrong, f"token ids must be in [0, {vocab_size})")
