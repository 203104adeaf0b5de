"""The manifests as they are: every check is content, and what no single check says."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy import __main__ as command
from tests.deploy import kustomize
from tests.deploy.__main__ import ADAPTER
from tests.deploy.checks import CHECKS, Facts
from tests.deploy.kustomize import HOW_TO_GET_ONE, K8S
from tests.deploy.live import live
from tests.deploy.manifests import PROCESSES
from tests.metrics import declared, series_of


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_is_content(name: str, facts: Facts) -> None:
    assert CHECKS[name](facts) == []


def test_overlays_can_be_taken_together(facts: Facts) -> None:
    together = facts.builds[-1]
    kinds = {obj["kind"] for obj in together.objects}
    assert {"ScaledObject", "ServiceMonitor", "NetworkPolicy"} <= kinds
    for workload, container, settings in together.processes:
        assert "TLS_CERTIFICATE" in settings, workload["metadata"]["name"]
        gpus = container["resources"]["limits"].get("nvidia.com/gpu")
        assert gpus == (None if container["name"] == "coordinator" else 1)
    assert {container["name"] for _, container, _ in together.processes} == set(PROCESSES)


def test_a_cluster_without_operators_takes_the_base(facts: Facts) -> None:
    groups = {obj["apiVersion"].split("/")[0] for obj in facts.build("base").objects}
    assert groups == {"v1", "apps", "policy", "networking.k8s.io"}


def test_every_file_in_k8s_is_part_of_a_build() -> None:
    """But for the adapter's values, which are another chart's."""
    named = set()
    for file in K8S.rglob("kustomization.yaml"):
        lines = [line.strip() for line in file.read_text().splitlines() if not line.startswith("#")]
        named |= {file.parent / re.split("[ =]", line)[-1] for line in lines if line.startswith("- ")}
    files = {file for file in K8S.rglob("*") if file.is_file() and file.name != "kustomization.yaml"}
    assert files - named == {ADAPTER}


def test_where_nothing_builds_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RuntimeError, match=HOW_TO_GET_ONE):
        kustomize.build(K8S / "base")


@pytest.mark.timeout(240)
async def test_what_is_asked_of_processes_they_really_show(tmp_path: Path, facts: Facts) -> None:
    """The live pages against the one list of instruments, and against what scalers ask."""
    shown = await live(tmp_path)
    whole = declared(labelled=False)
    runtime = ("python_", "process_")
    strangers = {name for name in shown.keys() - whole.keys() if not name.startswith(runtime)}
    assert not strangers, "they show what specdec/edge/telemetry.py does not name"
    unlabelled = whole.keys() - declared(labelled=True).keys()
    assert unlabelled - shown.keys() == set(), "these say nothing though everything was used"


def test_series_are_named_with_their_suffixes() -> None:
    lines = ["# TYPE a histogram", 'a_bucket{le="+Inf",x="y"} 1', 'a_sum{x="y"} 1', 'a_count{x="y"} 1', ""]
    assert series_of("\n".join(lines)) == {"a_bucket": {"le", "x"}, "a_sum": {"x"}, "a_count": {"x"}}


@pytest.mark.parametrize("spoilt", [False, True])
def test_the_command_prints_what_is_wrong_and_fails(
    spoilt: bool, facts: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "shown_by_processes", lambda folder: facts.series)
    given = replace(facts, adapter={}) if spoilt else facts
    monkeypatch.setattr(command, "gathered", lambda series: given)
    assert command.main() == int(spoilt)
    said = capsys.readouterr().out
    assert ("nothing wrong" in said) != ("[external metrics] prometheus-adapter.yaml: specdec_draft_queue_wait" in said)
