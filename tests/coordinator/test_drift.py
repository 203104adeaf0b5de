"""The drift check of a coordinator: live acceptance beside a profile, with scripted drafters."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.drift import read_profile
from specdec.core.drift import LEAST
from specdec.core.errors import ConfigError
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, counter, letters_folder

SIZE = 80


def profile(file: Path, drafters: Any) -> str:
    file.write_text(json.dumps({"version": 1, "drafters": drafters}))
    return str(file)


def alpha(value: float, positions: int = 5000) -> dict[str, float]:
    return {"alpha": value, "positions": positions}


async def test_a_sagging_drafter_is_told_once_and_again_when_it_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="coordinator.drift")
    folder, good = letters_folder(tmp_path / "m", SIZE), True

    def propose(context: Sequence[int], k: int) -> list[int]:
        return [(context[-1] + (1 if good else 2) + i) % SIZE for i in range(k)]

    drafter = scripted_drafter(counter(SIZE), folder, propose=propose)
    file = profile(tmp_path / "p.json", {"lm": {"greedy": alpha(0.9)}})
    async with stack(folder, [scripted_target(counter(SIZE), folder)], [drafter], profile=file) as s:

        async def answers(count: int) -> None:
            for _ in range(count):
                await s.generate(token_ids=[1], max_tokens=120, temperature=0.0, num_draft_tokens=4)

        await answers(4)
        assert s.metric("specdec_alpha_drift", drafter="lm", sampling="greedy") == pytest.approx(0.1)
        assert not caplog.records
        good = False
        await answers(3)
        assert s.metric("specdec_alpha_drift", drafter="lm", sampling="greedy") < -0.1
        good = True
        await answers(16)
        assert s.metric("specdec_alpha_drift", drafter="lm", sampling="greedy") > -0.05
    lines = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], lines
    assert "lm (greedy) sags below its profile" in lines[0] and "expected 0.900" in lines[0]
    assert "is back" in lines[1]


async def test_sampled_decoding_is_compared_by_exact_alphas(tmp_path: Path) -> None:
    """A profile of the same drafter sees no drift, one that promised more does."""
    folder = letters_folder(tmp_path / "m", 5)
    fields: dict[str, Any] = {"token_ids": [1], "max_tokens": 300, "temperature": 1.0, "num_draft_tokens": 3}

    async def drift(expected: float) -> tuple[float, float]:
        drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
        file = profile(tmp_path / "p.json", {"lm": {"sampled": alpha(expected), "greedy": alpha(1.0)}})
        async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], profile=file) as s:
            stats = (await s.generate(**fields)).stats
            assert stats.exact_alpha_count >= LEAST
            live = stats.exact_alpha_sum / stats.exact_alpha_count
            return live, s.metric("specdec_alpha_drift", drafter="lm", sampling="sampled")

    live, _ = await drift(0.5)
    for expected in (live, min(1.0, live + 0.3)):
        now, difference = await drift(expected)
        assert difference == pytest.approx(now - expected, abs=0.05)


async def test_too_few_positions_and_unknown_drafters_say_nothing(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    file = profile(tmp_path / "p.json", {"lm": {"sampled": alpha(0.9, LEAST - 1)}, "eagle": {"greedy": alpha(0.9)}})
    assert read_profile(file) == {("eagle", "greedy"): 0.9}
    async with stack(
        folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)], profile=file
    ) as s:
        await s.generate(token_ids=[1], max_tokens=300, temperature=1.0)
        assert "specdec_alpha_drift{" not in s.telemetry.scrape()


@pytest.mark.parametrize("content", ["", "[]", '{"drafters": {"lm": {"sampled": {}}}}', '{"drafters": {"lm": 3}}'])
def test_what_is_no_profile_is_refused_with_the_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ConfigError, match="specdec profile --json"):
        read_profile(str(tmp_path / "p.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_profile(str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match="no alpha"):
        read_profile(profile(tmp_path / "p.json", {"lm": {"warm": alpha(0.5)}}))
