"""One mistake each in the real manifests: its check names it, and says what to write."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

from tests.deploy.checks import CHECKS, Facts
from tests.deploy.mistakes import MISTAKES, Change, Draft, virtual_pool


@pytest.mark.parametrize(("change", "check", "build", "sentence"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_named(change: Change, check: str, build: str, sentence: str, facts: Facts) -> None:
    found = spoilt(facts, change, check, build)
    assert any(re.search(sentence, each) for each in found), found


def test_every_check_has_a_mistake_that_it_names() -> None:
    assert {check for _, check, _, _ in MISTAKES} == set(CHECKS)


@pytest.mark.scenario("B139")
@pytest.mark.parametrize("build", ["base", "overlays/tls"])
def test_liveness_and_readiness_that_are_swapped_are_named(build: str, facts: Facts) -> None:
    """B139: in the manifests: one asks whether it lives, the other whether it serves."""

    def swap(draft: Draft) -> None:
        pod = draft.container("target")
        pod["livenessProbe"], pod["readinessProbe"] = pod["readinessProbe"], pod["livenessProbe"]

    found = spoilt(facts, swap, "probes", build)
    assert [re.search(r"target: (\w+) asks for", sentence)[1] for sentence in found] == [  # type: ignore[index]
        "livenessProbe",
        "readinessProbe",
    ]


@pytest.mark.scenario("B140")
def test_pools_stand_behind_headless_names_that_the_coordinator_resolves(facts: Facts) -> None:
    """B140: in the manifests: headless names, whose pods the coordinator finds and balances by itself."""
    for build in facts.builds:
        ((_, _, settings),) = [entry for entry in build.processes if entry[1]["name"] == "coordinator"]
        assert (settings["TARGET_ADDRESSES"], settings["DRAFT_ADDRESSES"]) == ("target:50053", "draft:50052")
        for pool in ("target", "draft"):
            service = build.find("Service", pool)
            assert service is not None and service["spec"]["clusterIP"] == "None"
    assert spoilt(facts, virtual_pool, "addresses", "base")


def spoilt(facts: Facts, change: Change, check: str, build: str) -> list[str]:
    """What the check says once one build was changed."""
    draft = Draft(copy.deepcopy(facts.build(build)), [])
    change(draft)
    changed = replace(draft.build, objects=(*draft.build.objects, *draft.added))
    return CHECKS[check](replace(facts, builds=tuple(changed if b.name == build else b for b in facts.builds)))
