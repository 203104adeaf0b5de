"""Recording and alert rules, by promtool: they load, say what a hand count says, and each alert fires where it should
and is silent where it nearly should."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.observability.documents import read_yaml, rules, unknown
from tests.observability.prometheus import OBSERVABILITY, ROOT, RULES, promtool

ALERTS = [rule["alert"] for rule in rules("alert")]
CASES = sorted((RULES / "tests").glob("*.yml"))


def test_prometheus_takes_the_configuration_and_its_rules() -> None:
    done = promtool("check", "config", OBSERVABILITY / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    done = promtool("check", "rules", *sorted(RULES.glob("*.yml")))
    assert done.returncode == 0, done.stderr


@pytest.mark.scenario("B116")
@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.stem)
def test_rules_say_and_alerts_do_what_their_cases_expect(cases: Path) -> None:
    """B116 among them: an alert where nothing that a drafter proposes is accepted, and none where a little is."""
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    fires, silent = set(), set()
    for file in CASES:
        for case in read_yaml(file)["tests"]:
            samples = [sample for each in case["promql_expr_test"] for sample in each["exp_samples"]]
            expected = {name for sample in samples for name in re.findall(r'alertname="(\w+)"', sample["labels"])}
            fires |= expected
            silent |= {name for name in re.findall(r"(\w+) is silent", case["name"]) if name not in expected}
    assert fires == set(ALERTS)
    assert silent == set(ALERTS)


@pytest.mark.parametrize("cases", ["alerts.yml", "drift.yml"])
@pytest.mark.parametrize("instead", ["vector(0) > 1", "vector(1)"], ids=["never fire", "always fire"])
def test_the_cases_notice_alerts_that_do_not_look(tmp_path: Path, cases: str, instead: str) -> None:
    """With alerts that never fire every case fails that expects one; with alerts that always do, every case."""
    shutil.copytree(RULES, tmp_path / "rules")
    file = tmp_path / "rules" / "alerts.yml"
    expression, text = r"(\n\s+expr: ).*?(\n\s+(?:for|labels): )", file.read_text()
    blind, count = re.subn(expression, rf"\g<1>{instead}\g<2>", text, flags=re.S)
    assert count == len(ALERTS)
    file.write_text(blind)
    expected = [case["promql_expr_test"][0]["exp_samples"] for case in read_yaml(RULES / "tests" / cases)["tests"]]
    done = promtool("test", "rules", tmp_path / "rules" / "tests" / cases)
    failed = len(re.findall(r"^\s+expr: ", done.stdout + done.stderr, re.M))
    assert failed == (len(expected) if instead == "vector(1)" else sum(map(bool, expected)))


def test_rules_read_only_what_is_exported_or_recorded() -> None:
    named = {rule.get("alert") or rule["record"]: rule["expr"] for rule in [*rules("alert"), *rules("record")]}
    assert {name: found for name, expression in named.items() if (found := unknown(expression))} == {}


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(specdec_cycle_total[5m])", "no process shows a metric"),
        ('specdec_phase_seconds_sum{phases="draft"}', "no label phases"),
        ("specdec_phase_seconds", "no process shows a metric"),
        ("specdec:acceptance:ratio9m", "no process shows a metric"),
    ],
)
def test_a_metric_or_label_that_does_not_exist_is_named(expression: str, complaint: str) -> None:
    assert [complaint in each for each in unknown(expression)] == [True]


@pytest.mark.parametrize("rule", rules("alert"), ids=ALERTS)
def test_every_alert_says_what_is_wrong_how_bad_it_is_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    kebab = re.sub(r"(?<!^)(?=[A-Z])", "-", str(rule["alert"])).lower()
    file, anchor = rule["annotations"]["runbook_url"].split("#")
    assert anchor == kebab
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
