"""From the drafts of a real coordinator to the alert: scrapes, as Prometheus would have them, given to the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import counter, letters_folder
from tests.observability.prometheus import RULES, promtool

SIZE = 80
MINUTES = 17


def right(context: Sequence[int], k: int) -> list[int]:
    return [(context[-1] + 1 + i) % SIZE for i in range(k)]


def half(context: Sequence[int], k: int) -> list[int]:
    return [*right(context, k)[:2], *([0] * (k - 2))][:k]


def wrong(context: Sequence[int], k: int) -> list[int]:
    return [(i + 1) % SIZE for i in right(context, k)]


def by_drafter(page: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if "drafter" in sample.labels}


async def scrapes(tmp_path: Path) -> dict[str, list[dict[str, float]]]:
    """Of three coordinators whose drafter is right, half right and wrong: one after each minute's rounds."""
    found: dict[str, list[dict[str, float]]] = {}
    for propose in (right, half, wrong):
        folder = letters_folder(tmp_path / propose.__name__, SIZE)
        drafter = scripted_drafter(counter(SIZE), folder, propose=propose)
        async with stack(folder, [scripted_target(counter(SIZE), folder)], [drafter]) as s:
            pages = found[propose.__name__] = []
            for _ in range(MINUTES):
                for _ in range(2):
                    await s.generate(token_ids=[1], max_tokens=12, temperature=0.0, num_draft_tokens=4)
                pages.append(by_drafter(s.telemetry.scrape()))
    return found


@pytest.mark.scenario("B116")
async def test_a_drafter_that_is_always_wrong_raises_the_alert_and_others_do_not(tmp_path: Path) -> None:
    """B116: a right, a half right and a wrong drafter; their own counters, scraped every minute, fire for one alone."""
    found = await scrapes(tmp_path)
    for name, pages in found.items():
        drafts = [page["specdec_drafter_drafts_total"] for page in pages]
        assert drafts == sorted(set(drafts)), f"{name}: cumulative"
    last = {name: pages[-1]["specdec_drafter_accepted_tokens_total"] for name, pages in found.items()}
    assert last["right"] > last["half"] > last["wrong"] == 0
    series = [
        {"series": f'{metric}{{drafter="{name}"}}', "values": " ".join(str(page[metric]) for page in pages)}
        for name, pages in found.items()
        for metric in pages[0]
    ]
    labels = 'ALERTS{alertname="NothingAccepted",alertstate="firing",drafter="wrong",severity="ticket"}'
    case = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{MINUTES - 1}m",
                "exp_samples": [{"labels": labels, "value": 1}],
            }
        ],
    }
    content = {"rule_files": [str(RULES / "alerts.yml")], "evaluation_interval": "1m", "tests": [case]}
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(content))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
