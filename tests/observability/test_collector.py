"""The collector's configuration, as far as it can be read without the collector."""

from __future__ import annotations

from typing import Any

import pytest

from tests.observability.documents import read_yaml
from tests.observability.prometheus import OBSERVABILITY

KINDS = ("receivers", "processors", "exporters")


@pytest.fixture
def collector() -> Any:
    return read_yaml(OBSERVABILITY / "collector.yaml")


def test_every_component_that_is_used_is_described_and_the_other_way_about(collector: Any) -> None:
    (pipeline,) = collector["service"]["pipelines"].values()
    for kind in KINDS:
        assert set(pipeline[kind]) == set(collector[kind]), kind
    assert set(collector["service"]["extensions"]) == set(collector["extensions"])
    assert set(collector) == {*KINDS, "extensions", "service"}


def test_memory_is_limited_before_anything_is_held_and_spans_leave_in_batches(collector: Any) -> None:
    assert collector["service"]["pipelines"]["traces"]["processors"] == ["memory_limiter", "batch"]


def test_only_traces_pass_since_prometheus_scrapes_the_metrics(collector: Any) -> None:
    assert list(collector["service"]["pipelines"]) == ["traces"]


def test_spans_come_as_our_processes_send_them_by_grpc(collector: Any) -> None:
    assert collector["receivers"]["otlp"]["protocols"] == {"grpc": {"endpoint": "0.0.0.0:4317"}}
