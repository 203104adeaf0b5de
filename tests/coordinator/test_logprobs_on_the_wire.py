"""Raw log-probabilities of whatever is emitted: accepted, recovered or bonus, in both forms."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import responses
from protos.generation_pb2 import TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_BONUS, TOKEN_ORIGIN_RECOVERED, Token
from tests.fakes.stack import Answer, scripted_drafter, scripted_target, stack
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, MARKOV_ROWS, letters_folder

ORIGINS = {TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_RECOVERED, TOKEN_ORIGIN_BONUS}


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(17).getrandbits)


async def generated(tmp_path: Path, drafter: dict[str, Any] | None = None, **fields: Any) -> Answer:
    folder = letters_folder(tmp_path / "m", 5)
    served = scripted_drafter(MARKOV_5_DRAFT, folder, **(drafter or {}))
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [served]) as s:
        return await s.generate(**{"token_ids": [1], "max_tokens": 64, "num_draft_tokens": 3, "logprobs": 3, **fields})


def rows(answer: Answer) -> list[tuple[int, Token]]:
    """Each token with the one before it, which decides its law."""
    tokens = [token for chunk in answer.chunks for token in chunk.tokens]
    return list(zip([1, *(token.id for token in tokens)], tokens, strict=False))


def are_raw(answer: Answer) -> None:
    for last, token in rows(answer):
        law = np.log(MARKOV_ROWS[last])
        assert token.HasField("logprob")
        assert token.logprob == pytest.approx(law[token.id], abs=1e-5)
        best = np.argsort(-law, kind="stable")[:3]
        assert [top.id for top in token.top_logprobs] == best.tolist()
        assert [top.logprob for top in token.top_logprobs] == pytest.approx(law[best].tolist(), abs=1e-5)


FORMS: dict[str, dict[str, Any]] = {
    "p/q chain": {},
    "p/q on a support of two": {"drafter": {"support": 2}},
    "p/q tree": {"drafter": {"parents": (0, 0, 1, 1, 2)}, "num_draft_tokens": 5},
    "y coupled": {"seed": 5},
    "y chosen": {"drafter": {"propose": lambda context, k: [(context[-1] + 1) % 5] * k}},
}


@pytest.mark.scenario("B54", "B56")
@pytest.mark.parametrize("form", FORMS)
async def test_every_token_has_the_targets_own_logprob(tmp_path: Path, form: str) -> None:
    """B54, B56: of its own row, whatever its origin and whoever drafted it."""
    answer = await generated(tmp_path, **FORMS[form])
    assert {token.origin for _, token in rows(answer)} == ORIGINS
    assert not answer.stats.fallbacks
    are_raw(answer)


@pytest.mark.scenario("B56")
@pytest.mark.parametrize("fields", [{"drafter": "ngram"}, {"num_draft_tokens": 0}, {"num_draft_tokens": None}])
async def test_no_kind_of_draft_loses_them(tmp_path: Path, fields: dict[str, Any]) -> None:
    """B56: n-gram, none and the planner's choice."""
    folder = letters_folder(tmp_path / "m", 5)
    request = {"token_ids": [1, 2, 3, 1, 2], "max_tokens": 30, "logprobs": 1, "temperature": 0.0, **fields}
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answer = await s.generate(**request)
        bare = await s.generate(**{**request, "logprobs": None})
        own = await s.generate(**{**request, "logprobs": 0})
    for chunk in answer.chunks:
        assert all(token.HasField("logprob") and len(token.top_logprobs) == 1 for token in chunk.tokens)
    assert not any(token.HasField("logprob") for chunk in bare.chunks for token in chunk.tokens)
    assert all(token.HasField("logprob") and not token.top_logprobs for chunk in own.chunks for token in chunk.tokens)
    assert answer.ids == bare.ids == own.ids


@pytest.mark.scenario("B58")
@pytest.mark.parametrize("fields", [{"num_draft_tokens": 0}, {"num_draft_tokens": 3}, {"seed": 5}])
async def test_they_are_before_temperature_and_filters(tmp_path: Path, fields: dict[str, Any]) -> None:
    """B58: one documented mode on all paths; the token's own is there also when it is not among the top."""
    answer = await generated(tmp_path, temperature=0.5, top_k=4, logit_bias={2: 3.0}, **fields)
    are_raw(answer)
    assert any(token.id not in [top.id for top in token.top_logprobs] for _, token in rows(answer))


@pytest.mark.scenario("B54")
async def test_a_logprob_of_a_neighbouring_row_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: each token gets the values of the node that it leads to, not of the one that judged it."""
    real = responses.add_logprobs
    monkeypatch.setattr(responses, "add_logprobs", lambda token, draft, law, node: real(token, draft, law, 0))
    with pytest.raises(AssertionError):
        are_raw(await generated(tmp_path))
