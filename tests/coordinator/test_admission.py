"""Every field of a request: what it does, and what is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from coordinator import admission
from coordinator.admission import NOT_THERE_YET, Admitted, admit
from coordinator.session import ChatMessage
from coordinator.tokenizer import TextCodec
from coordinator.turn import Turn
from coordinator.turn_request import MAX_IDS, MAX_STOP_CHARS, MAX_STOP_STRINGS, TURN_FIELDS, Limits, fit
from protos import generation_pb2 as pb
from specdec.core.errors import InvalidArgument
from specdec.core.randomness import choice_seed
from specdec.core.sampling import GREEDY_BELOW
from tests.toy_tokenizers import BOS_ID, EOS_ID, save_folder, toy_vocab_size

V = toy_vocab_size("byte_level")
LIMITS = Limits(max_context=64, max_num_draft_tokens=16, drafters=("ngram", "lm"))
SEED = 0xFEED
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(str(save_folder(tmp_path_factory.mktemp("model"), "byte_level")))


def admitted(codec: TextCodec, limits: Limits = LIMITS, /, **fields: Any) -> Admitted:
    return admit(pb.GenerateRequest(**fields), codec, limits, lambda: SEED)


def turn_of(codec: TextCodec, /, **fields: Any) -> Turn:
    return admitted(codec, **{"text": "hello", **fields}).turns[0]


def refusal(codec: TextCodec, /, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        admitted(codec, **fields)
    return caught.value


def of_turn(read: Callable[[Turn], Any]) -> Callable[[Admitted], Any]:
    return lambda admitted: read(admitted.turns[0])


def of_params(name: str) -> Callable[[Admitted], Any]:
    return lambda admitted: getattr(admitted.turns[0].params, name)


@dataclass(frozen=True)
class Field:
    """accepted: (value in the request, effective value); effective: where it is read; refused: values; base:
    the rest of the request."""

    accepted: tuple[tuple[Any, Any], ...]
    effective: Callable[[Admitted], Any]
    refused: tuple[Any, ...]
    base: dict[str, Any] = field(default_factory=lambda: {"text": "hello"})


def chat(*messages: tuple[str, str]) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in messages])


def numbers(name: str, accepted: tuple[float, ...], refused: tuple[float, ...]) -> Field:
    return Field(tuple((v, v) for v in accepted), of_params(name), (*refused, NAN, INF, -INF))


NEVER = Field((), lambda admitted: None, ("x",))
NEVER_NUMBER = Field((), lambda admitted: None, (0, 1))
TABLE: dict[str, Field] = {
    "session_id": Field((("s-1", "s-1"),), lambda a: a.session_id, ("a b", "{s}", "s\n", "x" * 129)),
    "received_tokens": Field(((0, 0), (7, 7)), lambda a: a.received_tokens, (-1,), {"session_id": "s"}),
    "text": Field((("ab", 1),), lambda a: len(a.prompt_ids), ("",), {}),
    "token_ids": Field(
        ((pb.TokenIds(ids=[5, V - 1]), [5, V - 1]),),
        lambda a: a.prompt_ids.tolist(),
        (pb.TokenIds(), pb.TokenIds(ids=[5, V])),
        {},
    ),
    "chat": Field(
        ((chat(("user", "")), (ChatMessage("user", ""),)),), lambda a: a.messages, (chat(), chat(("", "hi"))), {}
    ),
    "max_tokens": Field(((1, 1), (10, 10), (2**40, 63)), of_turn(lambda t: t.max_tokens), (0, -1)),
    "min_tokens": Field(((0, 0), (63, 63)), of_params("min_tokens"), (-1, 64, 2**40)),
    "temperature": numbers("temperature", (0.0, 0.7, 5.0), (-0.1, -5e-324)),
    "top_k": Field(((-1, 0), (0, 0), (5, 5), (V, 0), (2**40, 0)), of_params("top_k"), (-2,)),
    "top_p": numbers("top_p", (1.0, 0.9, 1e-8), (0.0, -0.1, 1.0001)),
    "min_p": numbers("min_p", (0.0, 0.3), (-0.1, 1.0)),
    "repetition_penalty": numbers("repetition_penalty", (1.0, 0.5, 1.3), (0.0, -1.0)),
    "presence_penalty": numbers("presence_penalty", (-2.0, 0.0, 2.0), (-2.1, 2.1)),
    "frequency_penalty": numbers("frequency_penalty", (-2.0, 0.0, 2.0), (-2.1, 2.1)),
    "logit_bias": Field(
        (({4: 100.0, 3: -100.0}, ((3, -100.0), (4, 100.0))), ({7: -INF}, ((7, -INF),))),
        of_params("logit_bias"),
        ({-1: 0.0}, {V: 0.0}, {3: NAN}, {3: INF}, dict.fromkeys(range(MAX_IDS + 1), 0.0)),
    ),
    "seed": Field(((0, (0, True)), (2**64 - 1, (2**64 - 1, True))), of_turn(lambda t: (t.seed, t.seeded)), ()),
    "stop": Field(
        ((["b", "a", "b"], ("b", "a")), (["é" * MAX_STOP_CHARS], ("é" * MAX_STOP_CHARS,))),
        of_turn(lambda t: t.stop),
        ([""], ["a", ""], [f"s{i}" for i in range(MAX_STOP_STRINGS + 1)], ["x" * (MAX_STOP_CHARS + 1)]),
    ),
    "stop_token_ids": Field(
        (([9, 5, 9], (EOS_ID, 5, 9)),), of_params("end_ids"), ([-1], [V], [1] * (MAX_IDS + 1), [2**40])
    ),
    "ignore_eos": Field(((True, (True, ())),), of_turn(lambda t: (t.ignore_eos, t.params.end_ids)), ()),
    "n": Field(((1, 1), (16, 16)), lambda a: len(a.turns), (0, -1, 17)),
    "logprobs": Field(((0, 0), (20, 20)), of_params("logprobs"), (-1, 21)),
    "num_draft_tokens": Field(((0, 0), (16, 16)), of_turn(lambda t: t.num_draft_tokens), (-1, 17, 1000)),
    "drafter": Field((("auto", None), ("lm", "lm")), of_turn(lambda t: t.drafter), ("eagle", "LM")),
    "verification": Field(
        tuple((name, name) for name in ("rejection", "block", "traversal", "coupled", "typical")),
        of_turn(lambda t: t.verification),
        ("greedy", "Coupled", "auto"),
    ),
    "grammar": NEVER,
    "json_schema": NEVER,
    "regex": NEVER,
    "best_of": NEVER_NUMBER,
    "prompt_logprobs": NEVER_NUMBER,
    "beam_width": NEVER_NUMBER,
}  # fmt: skip
ACCEPTED = [(name, *pair) for name, entry in TABLE.items() for pair in entry.accepted]
REFUSED = [(name, value) for name, entry in TABLE.items() for value in entry.refused]


@pytest.mark.scenario("B47")
def test_every_field_of_the_request_has_an_entry_in_this_table() -> None:
    """A new field of the proto fails here until it has a rule; one without a rule is refused, never
    ignored."""
    assert set(TABLE) == {f.name for f in pb.GenerateRequest.DESCRIPTOR.fields}
    assert all(entry.accepted or entry.refused for entry in TABLE.values())


@pytest.mark.scenario("B47")
@pytest.mark.parametrize("name, value, effective", ACCEPTED)
def test_each_field_has_its_effect(codec: TextCodec, name: str, value: Any, effective: Any) -> None:
    """The value that a request gives is the one that counts."""
    assert TABLE[name].effective(admitted(codec, **TABLE[name].base, **{name: value})) == effective


@pytest.mark.parametrize("name, value", REFUSED)
def test_a_value_out_of_range_is_refused_by_the_fields_name(codec: TextCodec, name: str, value: Any) -> None:
    error = refusal(codec, **TABLE[name].base, **{name: value})
    assert error.field == name and error.remedy


@pytest.mark.scenario("B47")
def test_a_field_without_a_rule_is_refused(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault put back: min_p is in the proto, but admission has forgotten it."""
    monkeypatch.setattr(admission, "TURN_FIELDS", tuple(f for f in TURN_FIELDS if f != "min_p"))
    assert refusal(codec, text="hello", min_p=0.1).field == "min_p"


def test_a_field_that_only_newer_callers_know_is_refused(codec: TextCodec) -> None:
    wire = pb.GenerateRequest(text="hello").SerializeToString() + bytes([99 << 3 & 0x7F | 0x80, 99 >> 4, 1])
    with pytest.raises(InvalidArgument, match="field 99"):
        admit(pb.GenerateRequest.FromString(wire), codec, LIMITS, lambda: SEED)


@pytest.mark.scenario("B57")
@pytest.mark.scenario("B59")
@pytest.mark.scenario("B60")
@pytest.mark.scenario("B61")
@pytest.mark.scenario("B62")
def test_features_that_are_not_there_are_refused_all_by_name(codec: TextCodec) -> None:
    """Never an unconstrained answer to a constrained request; all offending options are named; the next one
    works."""
    every: dict[str, Any] = {"grammar": "g", "json_schema": "{}", "regex": ".", "best_of": 1}
    every |= {"prompt_logprobs": 0, "beam_width": 2}
    assert refusal(codec, text="hello", **every).field == ", ".join(NOT_THERE_YET)
    assert refusal(codec, text="hello", regex="[0-9]+;", prompt_logprobs=1).field == "regex, prompt_logprobs"
    assert turn_of(codec)


@pytest.mark.scenario("B122")
def test_draft_lengths_are_checked_by_name_value_and_range(codec: TextCodec) -> None:
    """0 is off by rule, unset leaves it to the planner; -1 and 1000 are refused with the range."""
    assert turn_of(codec, num_draft_tokens=0).num_draft_tokens == 0
    assert turn_of(codec).num_draft_tokens is None
    for k in (-1, 17, 1000):
        error = refusal(codec, text="hello", num_draft_tokens=k)
        assert (error.field, error.value) == ("num_draft_tokens", k) and "[0, 16]" in error.remedy


@pytest.mark.scenario("B123")
@pytest.mark.parametrize("value", [1.9, True, " 3 ", "1.9", "four"])
def test_a_draft_length_that_is_no_integer_never_becomes_one(value: Any) -> None:
    """By JSON (grpcurl, gateways) and by the stubs, where `true` cannot be told from 1."""
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict({"text": "hello", "numDraftTokens": value}, pb.GenerateRequest())
    if value is not True:
        with pytest.raises(TypeError):
            pb.GenerateRequest(text="hello", num_draft_tokens=value)


@pytest.mark.scenario("B130")
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-30, 1e-6, 0.99 * GREEDY_BELOW, GREEDY_BELOW, 1e-3])
def test_one_threshold_decides_where_greedy_begins(codec: TextCodec, temperature: float) -> None:
    """Tiny temperatures are admitted and greedy; below 0 and NaN are refused."""
    assert turn_of(codec, temperature=temperature).params.greedy == (temperature < GREEDY_BELOW)
    for wrong in (-1e-30, NAN, INF):
        assert refusal(codec, text="hello", temperature=wrong).field == "temperature"


# --- prompts and sessions ---------------------------------------------------------------------------------------------


def test_a_request_without_a_prompt_says_what_is_missing(codec: TextCodec) -> None:
    assert refusal(codec).field == "prompt"
    assert refusal(codec, session_id="s").field == "prompt"
    assert refusal(codec, received_tokens=3).field == "received_tokens"
    assert refusal(codec, text="hello", received_tokens=3).field == "received_tokens"


def test_a_resume_is_a_session_and_what_its_caller_has(codec: TextCodec) -> None:
    resumed = admitted(codec, session_id="s", received_tokens=0)
    assert (resumed.kind, resumed.session_id, resumed.received_tokens) == ("resume", "s", 0)
    assert resumed.turns == () and resumed.prompt_ids.size == 0


def test_a_resume_with_parameters_is_refused_naming_them(codec: TextCodec) -> None:
    """They would be ignored: the turn's stored parameters and seed go on."""
    error = refusal(codec, session_id="s", received_tokens=3, temperature=0.5, seed=0, stop=["x"])
    assert error.field == "temperature, seed, stop"


def test_a_new_session_of_text_has_bos_and_a_new_turn_has_none(tmp_path: Path) -> None:
    codec = TextCodec.load(str(save_folder(tmp_path, "byte_fallback")))
    first = admitted(codec, text="the x").prompt_ids.tolist()
    later = admitted(codec, text="the x", session_id="s").prompt_ids.tolist()
    assert first == codec.encode("the x", add_bos=True) and first[0] == BOS_ID
    assert later == codec.encode_continuation("the x") and BOS_ID not in later


def test_a_new_chat_is_encoded_by_its_template_and_a_chat_turn_waits_for_its_session(codec: TextCodec) -> None:
    messages = (ChatMessage("user", "hello"),)
    new = admitted(codec, chat=chat(("user", "hello")))
    assert (new.kind, new.messages) == ("chat", messages)
    assert new.prompt_ids.tolist() == codec.chat_prompt_ids(messages)
    turn = admitted(codec, chat=chat(("user", "hello")), session_id="s", received_tokens=2)
    assert (turn.messages, turn.prompt_ids.size, turn.received_tokens) == (messages, 0, 2)


def test_a_chat_that_the_template_refuses_is_the_callers_mistake(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level", chat_template="{{ raise_exception('no system role') }}")
    assert refusal(TextCodec.load(str(folder)), chat=chat(("system", "x"))).field == "chat"


@pytest.mark.parametrize("n", [2, 16])
def test_several_choices_have_seeds_of_their_own_and_no_session(codec: TextCodec, n: int) -> None:
    turns = admitted(codec, text="hello", n=n, seed=42).turns
    assert [t.seed for t in turns] == [choice_seed(42, i) for i in range(n)]
    assert turns[0].seed == 42 and len({t.seed for t in turns}) == n
    assert refusal(codec, text="hello", n=n, session_id="s").field == "n"


# --- the context ------------------------------------------------------------------------------------------------------


def test_a_prompt_must_leave_room_for_one_token(codec: TextCodec) -> None:
    ids = pb.TokenIds(ids=[5] * 63)
    assert turn_of(codec, text=None, token_ids=ids).max_tokens == 1
    ids.ids.append(5)
    error = refusal(codec, token_ids=ids)
    assert error.field == "prompt" and "63" in error.remedy


def test_unset_max_tokens_is_the_models_default_or_the_room_that_is_left(codec: TextCodec, tmp_path: Path) -> None:
    assert turn_of(codec, text="abab").max_tokens == 62
    folder = save_folder(tmp_path, "byte_level", generation_config={"max_new_tokens": 20})
    assert turn_of(TextCodec.load(str(folder)), text="abab").max_tokens == 20


def test_min_tokens_beyond_the_end_is_refused(codec: TextCodec) -> None:
    assert refusal(codec, text="hello", min_tokens=5, max_tokens=4).field == "min_tokens"
    assert refusal(codec, token_ids=pb.TokenIds(ids=[5] * 60), min_tokens=5).field == "min_tokens"


def test_a_turn_of_a_session_is_fitted_once_its_length_is_known(codec: TextCodec) -> None:
    turn = admitted(codec, text="hello", session_id="s").turns[0]
    assert fit(turn, prompt_tokens=60, max_context=64).max_tokens == 4
    with pytest.raises(InvalidArgument):
        fit(turn, prompt_tokens=64, max_context=64)


# --- defaults, seeds, rules, empty laws -------------------------------------------------------------------------------


def test_unset_fields_take_the_models_generation_config(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1}
    folder = save_folder(tmp_path, "byte_level", generation_config={**config, "eos_token_id": [2, 1]})
    params = turn_of(TextCodec.load(str(folder))).params
    assert {name: getattr(params, name) for name in config} == config
    assert params.end_ids == (1, 2)
    assert turn_of(TextCodec.load(str(folder)), top_k=0, temperature=0).params.top_k == 0


def test_do_sample_false_is_greedy_until_the_request_says_otherwise(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level", generation_config={"do_sample": False, "temperature": 0.6})
    codec = TextCodec.load(str(folder))
    assert turn_of(codec).params.greedy and not turn_of(codec, temperature=1).params.greedy


def test_an_unset_seed_is_drawn_and_a_given_one_is_kept_even_zero(codec: TextCodec) -> None:
    drawn = turn_of(codec)
    assert (drawn.seed, drawn.seeded) == (SEED, False)
    assert (turn_of(codec, seed=0).seed, turn_of(codec, seed=0).seeded) == (0, True)


@pytest.mark.parametrize(
    "fields, rule",
    [
        ({}, "block"),
        ({"seed": 1}, "coupled"),
        ({"seed": 1, "verification": "rejection"}, "rejection"),
        ({"seed": 1, "verification": "block"}, "block"),
        ({"seed": 1, "verification": "traversal"}, "traversal"),
        ({"verification": "traversal"}, "traversal"),
        ({"verification": "rejection"}, "rejection"),
        ({"verification": "coupled"}, "coupled"),
        ({"verification": "typical"}, "typical"),
        ({"seed": 1, "verification": "typical"}, "typical"),
        ({"temperature": 0.0}, "coupled"),
        ({"temperature": 0.0, "verification": "rejection"}, "coupled"),
        ({"temperature": 0.0, "verification": "typical"}, "coupled"),
    ],
)
def test_the_rule_is_the_named_one_else_by_the_seed(codec: TextCodec, fields: dict[str, Any], rule: str) -> None:
    """Greedy, seeded and coupled turns are in the y-form; typical, which is lossy, is never chosen unnamed."""
    turn = turn_of(codec, **fields)
    assert turn.rule == rule
    assert turn.sampled == (rule in ("block", "traversal", "rejection"))
    assert turn.lossy == (rule == "typical")


@pytest.mark.scenario("B132")
def test_a_bias_that_bans_every_token_is_refused(codec: TextCodec) -> None:
    """All ids banned; or all but EOS, which min_tokens masks. One id left is enough."""
    ban = dict.fromkeys(range(V), -INF)
    assert refusal(codec, text="hello", logit_bias=ban).field == "logit_bias"
    del ban[EOS_ID]
    assert turn_of(codec, logit_bias=ban)
    assert refusal(codec, text="hello", logit_bias=ban, min_tokens=1).field == "min_tokens"
    del ban[7]
    assert turn_of(codec, logit_bias=ban, min_tokens=1)


def test_without_any_drafter_only_auto_is_accepted(codec: TextCodec) -> None:
    limits = Limits(max_context=64, max_num_draft_tokens=0, drafters=())
    assert admitted(codec, limits, text="hello").turns[0].drafter is None
    with pytest.raises(InvalidArgument, match="none is served"):
        admitted(codec, limits, text="hello", drafter="lm")
