from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, StaleContext, VerifyRequest
from specdec.lm.loading import LoadedModel, load_model
from target_service.session import VerifyJob
from tests.reference import reference_tokens
from tests.target_service.conftest import VOCAB, MakeEngine
from tests.target_service.driver import GREEDY, Turn, bushes, generate, guesses, ids, plain, run
from tests.tiny_models import FAMILIES

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2)


def prompt(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, n)]


@pytest.fixture(scope="module")
def stock_greedy(folders: dict[str, Path]) -> dict[str, list[int]]:
    """Family -> prompt of 15 tokens and what transformers.generate adds to it."""
    out = {}
    for family, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        given = torch.tensor([prompt(15)])
        generated = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=100, do_sample=False, eos_token_id=None
        )
        out[family] = generated[0].tolist()
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["plain", "oracle", "liar", "half", "tree"])
def test_greedy_output_is_that_of_transformers_whatever_the_draft(
    make_engine: MakeEngine, stock_greedy: dict[str, list[int]], family: str, kind: str
) -> None:
    truth = stock_greedy[family]
    drafts = {
        "plain": plain,
        "oracle": guesses(truth, 6, 0, VOCAB),
        "liar": guesses(truth, 0, 4, VOCAB),
        "half": guesses(truth, 2, 3, VOCAB),
        "tree": bushes(truth, 5, VOCAB),
    }
    turn = Turn(truth[:15], 100, drafts[kind])
    run(make_engine(family), [turn])
    assert turn.output == truth[15:]
    cycles = {"plain": 100, "oracle": 15, "liar": 100, "half": 34}
    assert len(turn.results) == cycles.get(kind, len(turn.results))
    assert kind != "tree" or len(turn.results) < 90


def test_seeded_output_is_that_of_one_token_at_a_time_whatever_the_draft(
    make_engine: MakeEngine, models: dict[str, LoadedModel], folders: dict[str, Path]
) -> None:
    """REF with the stock model, the slow law and the slow draw."""
    stock = AutoModelForCausalLM.from_pretrained(folders["qwen3"], attn_implementation="eager", dtype=torch.float32)

    def logits_of(context: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(stock(torch.tensor([context])).logits[0, -1])

    given = prompt(7, 3)
    truth = given + reference_tokens(logits_of, given, SEEDED, 11, 40)
    for draft in (plain, guesses(truth, 5, 1, VOCAB), bushes(truth, 2, VOCAB)):
        assert generate(make_engine("qwen3"), given, 40, params=SEEDED, seed=11, draft=draft) == truth[7:]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 33])
def test_prompts_around_the_chunk_size_give_the_same_tokens(make_engine: MakeEngine, length: int) -> None:
    whole = generate(make_engine(), prompt(length), 12)
    assert generate(make_engine(token_budget=8, max_nodes=7), prompt(length), 12) == whole


@pytest.mark.scenario("B18", "B74", "B81")
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_output_alone_together_and_with_random_arrivals_is_the_same(make_engine: MakeEngine, params: Any) -> None:
    """Sixteen requests, drafts of 0..5 tokens, rows joining and leaving at different positions."""
    alone = [generate(make_engine(), prompt(3 + 5 * i, i), 16, params=params, seed=i) for i in range(16)]
    truths = [prompt(3 + 5 * i, i) + alone[i] for i in range(16)]
    random = np.random.default_rng(0)
    for arrivals in ([0] * 16, random.integers(0, 20, 16).tolist()):
        turns = [
            Turn(truth[: 3 + 5 * i], 16, guesses(truth, i % 4, i % 3, VOCAB), params, i, arrivals[i], f"s{i}")
            for i, truth in enumerate(truths)
        ]
        random.shuffle(turns)
        run(make_engine(kv_tokens=4000), turns)
        assert {t.session_id: t.output for t in turns} == {f"s{i}": alone[i] for i in range(16)}


@pytest.mark.parametrize("fault", ["rows of a neighbour", "one row late"])
def test_negative_control_logits_of_the_wrong_row_are_seen(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    alone = [generate(make_engine(), prompt(6, i), 10) for i in range(2)]
    engine = make_engine()
    compute = engine._runner.compute

    def mixed_up(segments: Any, layers: Any) -> Any:
        parts = compute(segments, layers)
        if fault == "rows of a neighbour":
            return parts[::-1]
        return [replace(part, logits=part.logits.roll(1, 0)) for part in parts]

    monkeypatch.setattr(engine._runner, "compute", mixed_up)
    turns = [Turn(prompt(6, i), 10, guesses(prompt(6, i) + alone[i], 2, 1, VOCAB)) for i in range(2)]
    run(engine, turns)
    assert [t.output for t in turns] != alone


@pytest.mark.scenario("B16")
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_k=1)], ids=["greedy", "top-1"])
def test_an_exact_tie_goes_to_the_lowest_id_on_every_path(
    make_engine: MakeEngine, folders: dict[str, Path], params: SamplingParams, tmp_path: Path
) -> None:
    """Two rows of the head are equal, so two logits always are; both are made to win often."""
    model = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32)
    with torch.no_grad():
        head = model.lm_head.weight
        head[40] = head[20] = head[20] * 3
    shutil.copytree(folders["llama"], tmp_path, dirs_exist_ok=True)
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    tokens = generate(make_engine(loaded=loaded), prompt(5), 60, params=params)
    assert 20 in tokens
    assert 40 not in tokens
    truth = prompt(5) + tokens
    for draft in (guesses(truth, 5, 0, VOCAB), bushes(truth, 1, VOCAB)):
        assert generate(make_engine(loaded=loaded), prompt(5), 60, params=params, draft=draft) == tokens


@pytest.mark.scenario("B16")
def test_bfloat16_diverges_only_at_near_ties(make_engine: MakeEngine, folders: dict[str, Path]) -> None:
    """Rows computed together round differently; where greedy output parts, the two best logits were close."""
    loaded = load_model(str(folders["llama"]), dtype="bfloat16", device="cpu")
    epsilon = 0.1
    for seed in range(3):
        given = prompt(6, seed)
        slow = generate(make_engine(loaded=loaded), given, 50)
        fast = generate(make_engine(loaded=loaded), given, 50, draft=guesses(given + slow, 4, 1, VOCAB))
        parts = next((i for i, (a, b) in enumerate(zip(slow, fast, strict=True)) if a != b), None)
        if parts is not None:
            stock = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32)
            best = stock(torch.tensor([given + slow[:parts]])).logits[0, -1].topk(2).values
            assert float(best[0] - best[1]) < epsilon


def test_a_new_stream_of_a_session_knows_no_tokens(make_engine: MakeEngine) -> None:
    """What is cached is only a cache: an offset that was never sent on this stream is stale."""
    engine = make_engine()
    generate(engine, prompt(20), 5, session_id="chat")
    opening = OpenSession("chat", GREEDY, 0, 20)
    session = engine.open(opening)
    [(_, result)] = engine.step([VerifyJob(session, VerifyRequest(0, 20, ids([1]), open=opening))])
    assert result.result == StaleContext(0)


@pytest.mark.scenario("B95")
def test_a_stale_context_names_what_is_held_and_the_resent_tokens_are_computed_from_there(
    make_engine: MakeEngine,
) -> None:
    """A replacement got the history but its position stayed 0."""
    whole = generate(make_engine(), prompt(12), 6)
    engine = make_engine()
    turn = Turn(prompt(12), 6)
    turn.next_job(engine)
    turn.sent = 12  # as if the tokens had gone to the replica that died
    run(engine, [turn])
    assert turn.results[0].result == StaleContext(0)
    assert turn.results[1].computed_tokens == 12
    assert turn.output == whole


@pytest.mark.scenario("B29")
def test_rows_that_accept_nothing_do_not_read_their_neighbours(make_engine: MakeEngine) -> None:
    """An accepted count of 0 became index -1: first row, then all rows accept nothing."""
    alone = [generate(make_engine(), prompt(6, i), 10) for i in range(4)]
    for right in ([0, 3, 3, 3], [0, 0, 0, 0]):
        turns = [
            Turn(prompt(6, i), 10, guesses(prompt(6, i) + alone[i], right[i], 2, VOCAB), session_id=str(i))
            for i in range(4)
        ]
        run(make_engine(), turns)
        assert [t.output for t in turns] == alone
        if not any(right):
            assert [len(t.results) for t in turns] == [10] * 4


@pytest.mark.scenario("B80")
def test_two_live_sessions_of_one_id_are_both_right(make_engine: MakeEngine) -> None:
    """Differing prompts, the second 3 steps later; and the id once more after both have ended."""
    engine = make_engine()
    turns = [Turn(prompt(8, i), 10, session_id="x", start=3 * i) for i in range(2)]
    run(engine, turns)
    assert [t.output for t in turns] == [generate(make_engine(), prompt(8, i), 10) for i in range(2)]
    assert generate(engine, prompt(8, 0), 10, session_id="x") == turns[0].output


@pytest.mark.scenario("B81", "B96")
def test_a_forward_that_raises_fails_its_jobs_alone_and_leaks_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One forward in ten raises: typed refusals, right answers on retry, and all room returns."""
    engine = make_engine(kv_tokens=400)
    expected = [generate(make_engine(), prompt(6, i), 8) for i in range(30)]
    compute, random = engine._runner.compute, np.random.default_rng(4)
    refusals = 0

    def flaky(segments: Any, layers: Any) -> Any:
        if random.random() < 0.1:
            raise RuntimeError("the device fell off")
        return compute(segments, layers)

    monkeypatch.setattr(engine._runner, "compute", flaky)

    class Retrying(Turn):
        def take(self, job: VerifyJob, result: Any) -> None:
            nonlocal refusals
            if isinstance(result.result, Refusal):
                assert result.result.reason == "FORWARD_FAILED"
                refusals += 1
                self.results.append(result)
            else:
                super().take(job, result)

    turns = [Retrying(prompt(6, i), 8, session_id=str(i), start=3 * (i // 4)) for i in range(30)]
    run(engine, turns)
    assert [t.output for t in turns] == expected
    assert refusals > 3
    assert engine.num_sessions == 0
    assert engine.kv_free == engine.kv_total


@pytest.mark.scenario("B132", "B135")
def test_an_impossible_law_or_nan_refuses_that_job_only(
    make_engine: MakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch mates get what they would get alone."""
    expected = generate(make_engine(), prompt(5), 1)
    engine = make_engine()
    banned = SamplingParams(logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
    compute = engine._runner.compute

    def poisoned(segments: Any, layers: Any) -> Any:
        parts = compute(segments, layers)
        return [parts[0], replace(parts[1], logits=torch.full_like(parts[1].logits, torch.nan)), parts[2]]

    monkeypatch.setattr(engine._runner, "compute", poisoned)
    openings = [OpenSession(str(i), p, 0, 5) for i, p in enumerate((banned, GREEDY, GREEDY))]
    jobs = [VerifyJob(engine.open(o), VerifyRequest(0, 0, ids(prompt(5)), open=o)) for o in openings]
    empty, nan, good = (result.result for _, result in engine.step(jobs))
    assert isinstance(empty, Refusal)
    assert (empty.reason, empty.field) == ("EMPTY_LAW", "logit_bias")
    assert isinstance(nan, Refusal)
    assert (nan.reason, nan.field) == ("NAN_LOGITS", "")
    assert isinstance(good, Verification)
    assert good.drawn.tolist() == expected


@pytest.mark.scenario("B87", "B90")
def test_closing_in_any_phase_leaves_a_sound_engine_and_all_its_room(make_engine: MakeEngine) -> None:
    """Before admission, queued, in a prefill, between two cycles, twice; and a probe is served after each."""
    engine = make_engine(kv_tokens=300, token_budget=12)
    random = np.random.default_rng(0)
    probe = generate(make_engine(), prompt(4), 2)
    for round_ in range(60):
        pending = []
        for i in range(3):
            opening = OpenSession(f"{round_}.{i}", GREEDY, 0, 1)
            tree = DraftTree.chain(prompt(4, i))
            request = VerifyRequest(0, 0, ids(prompt(int(random.integers(1, 50)), i)), tree, open=opening)
            pending.append(VerifyJob(engine.open(opening), request))
        sessions = [job.session for job in pending]
        for _ in range(int(random.integers(0, 12))):
            finished = {id(job) for job, _ in engine.step(pending)}
            pending = [job for job in pending if id(job) not in finished]
        for session in sessions:
            engine.close(session)
            engine.close(session)
        for _, result in engine.step(pending):
            assert isinstance(result.result, Refusal)
            assert result.result.reason == "CLOSED"
        assert generate(engine, prompt(4), 2, session_id="probe") == probe
        assert engine.num_sessions == 0
        assert engine.kv_free == engine.kv_total


def test_a_later_message_may_begin_a_new_turn(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = OpenSession("s", GREEDY, 0, 10)
    session = engine.open(first)
    [(_, one)] = engine.step([VerifyJob(session, VerifyRequest(0, 0, ids(prompt(10)), open=first))])
    assert isinstance(one.result, Verification)
    again = replace(first, params=SamplingParams(temperature=0, logit_bias=((33, 1e6),)), turn_start=10)
    [(_, two)] = engine.step([VerifyJob(session, VerifyRequest(1, 10, ids([]), open=again))])
    assert isinstance(two.result, Verification)
    assert two.result.drawn.tolist() == [33]


@pytest.mark.parametrize(
    ("request_", "opening", "field"),
    [
        (VerifyRequest(0, 0, ids([])), None, "token_ids"),
        (VerifyRequest(0, 0, ids([1, VOCAB])), None, "token_ids"),
        (VerifyRequest(0, 0, ids([1]), DraftTree.chain([VOCAB])), None, "draft_token_ids"),
        (VerifyRequest(0, 0, ids([1]), DraftTree.chain([1] * 17)), None, "draft_token_ids"),
        (VerifyRequest(0, 0, ids([1])), OpenSession("s", GREEDY, 0, 2), "turn_start"),
        (
            VerifyRequest(0, 0, ids([1])),
            OpenSession("s", SamplingParams(logit_bias=((VOCAB, 1.0),)), 0, 1),
            "logit_bias_ids",
        ),
    ],
)
def test_a_message_that_cannot_be_served_is_refused_by_field_and_changes_nothing(
    make_engine: MakeEngine, request_: VerifyRequest, opening: OpenSession | None, field: str
) -> None:
    engine = make_engine()
    session = engine.open(OpenSession("s", GREEDY, 0, 1))
    engine.step([VerifyJob(session, VerifyRequest(0, 0, ids(prompt(5))))])
    [(_, result)] = engine.step([VerifyJob(session, replace(request_, open=opening))])
    assert isinstance(result.result, Refusal)
    assert (result.result.reason, result.result.field) == ("INVALID_ARGUMENT", field)
    assert session.context.tolist() == prompt(5)
