"""The short form: most kinds of fault once, in the middle of a generation. `make chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.disturbed import run, soak
from tests.chaos.faults import SHORT
from tests.chaos.scene import Scene
from tests.end_to_end.clusters import tiny_folder

SOAKED = 24  # generations, of which half are left


@pytest.mark.scenario("B94", "B96", "B97", "B106", "B111")
@pytest.mark.timeout(400)
async def test_no_fault_changes_loses_or_doubles_a_token_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """B94: sampling state is rebuilt from the tokens. B97: drafters come and go. B106, B111: Redis blinks, hangs and
    dies."""
    folder = tiny_folder(tmp_path / "model")
    async with Scene(folder, tmp_path) as scene:
        outcomes = await run(scene, SHORT)
        assert [outcome for outcome in outcomes if not outcome.right] == []
        assert sum(outcome.fired for outcome in outcomes) >= 0.9 * len(outcomes), "faults came too late to matter"
        assert await scene.left_behind() == {}
        await soak(scene, SOAKED)
        before = scene.descriptors()
        await soak(scene, SOAKED)
        assert await scene.left_behind() == {}
        grown = {name: now - before[name] for name, now in scene.descriptors().items()}
        assert max(grown.values()) < 8, f"descriptors that nobody closes: {grown}"  # connections to Redis come and go
