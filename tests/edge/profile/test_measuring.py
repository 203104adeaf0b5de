"""The run itself, against a scripted coordinator."""

from __future__ import annotations

from collections import Counter

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    TOKEN_ORIGIN_RECOVERED,
    GenerateRequest,
    GenerateResponse,
)
from specdec.core.errors import SpecdecError
from specdec.edge.client import Client
from specdec.edge.profile.cells import AUTO, PLAIN, Key
from specdec.edge.profile.measuring import Run, measured
from specdec.edge.profile.prompts import Prompt
from tests.edge.scripted_generation import chunk, complete, serve_script, started

RUN = Run(
    prompts=(Prompt("one", "a"), Prompt("two", "b"), Prompt("two", "c")),
    temperatures=(0.0, 1.0),
    drafters=("lm", "tree"),
    chains=(2, 4),
    trees=(8, 300),
    max_tokens=7,
)


def answer(request: GenerateRequest) -> list[GenerateResponse | SpecdecError]:
    """A prompt's cycle, then one whose draft was half accepted; `tree` drafts trees."""
    second = chunk(1, ("b", TOKEN_ORIGIN_ACCEPTED), ("c", TOKEN_ORIGIN_RECOVERED))
    second.chunk.drafter = request.drafter or "some"
    second.chunk.num_draft_tokens = request.num_draft_tokens
    second.chunk.draft_depth = 2 if request.drafter == "tree" else request.num_draft_tokens
    second.chunk.num_accepted_tokens = 1 if request.num_draft_tokens else 0
    second.chunk.timing.cycle_us = 1000
    return [started(seed=1), chunk(0, ("a", TOKEN_ORIGIN_BONUS)), second, complete()]


async def test_every_prompt_meets_every_configuration_and_trees_have_a_grid_of_their_own() -> None:
    shares: list[float] = []
    async with serve_script(answer) as (address, service), Client(address) as client:
        samples = await measured(client, RUN, 60, shares.append)
    configurations = [(PLAIN, 0), (AUTO, None), ("lm", 2), ("lm", 4), ("tree", 8), ("tree", 60)]
    counts = {(key.domain, key.temperature, key.drafter, key.k): len(cycles) for key, cycles in samples.items()}
    assert counts == {
        (domain, t, drafter, k): n for domain, n in (("one", 1), ("two", 2)) for t in (0.0, 1.0)
        for drafter, k in configurations
    }  # fmt: skip
    (cycle,) = samples[Key("one", 1.0, "lm", 4)]
    assert (cycle.nodes, cycle.depth, cycle.accepted, cycle.reached, cycle.tokens) == (4, 4, 1, 2, 2)
    assert shares[-1] == 1.0 and shares == sorted(shares)
    asked = service.requests[4:]  # behind the warm-up
    assert {r.verification for r in asked if r.temperature == 0} == {""}
    assert {r.verification for r in asked if r.temperature == 1} == {"rejection"}
    assert not any(r.HasField("seed") for r in asked)


async def test_no_configuration_always_comes_first() -> None:
    async with serve_script(answer) as (address, service), Client(address) as client:
        await measured(client, RUN, 60, lambda share: None)
    asked = service.requests[4:]
    firsts = [asked[i] for i in range(0, len(asked), 6)]
    assert max(Counter((r.drafter, r.HasField("num_draft_tokens"), r.num_draft_tokens) for r in firsts).values()) == 1
