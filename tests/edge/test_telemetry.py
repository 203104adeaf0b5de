import asyncio
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.core import Metric

from specdec.core.errors import ConfigError
from specdec.edge import telemetry as names
from specdec.edge.telemetry import CoordinatorMetrics, ReplicaMetrics, Telemetry
from tests.metrics import use_all

CONTRACT = {
    "specdec_num_drafts_total",
    "specdec_num_draft_tokens_total",
    "specdec_num_accepted_tokens_total",
    "specdec_num_accepted_tokens_per_pos_total",
    "specdec_num_emitted_tokens_total",
    "specdec_cut_tokens_total",
    "specdec_wasted_draft_tokens_total",
    "specdec_fallbacks_total",
    "specdec_phase_seconds",
    "specdec_cycle_seconds",
    "specdec_network_seconds",
    "specdec_num_rejected_tokens_per_pos_total",
    "specdec_drafter_drafts_total",
    "specdec_drafter_draft_tokens_total",
    "specdec_drafter_accepted_tokens_total",
    "specdec_drafter_judged_tokens_total",
    "specdec_requests_total",
    "specdec_finishes_total",
    "specdec_exact_alpha",
    "specdec_quarantines_total",
    "specdec_excluded_replicas",
    "specdec_ready_replicas",
    "specdec_speculation_enabled",
    "specdec_active_streams",
    "specdec_resumes_total",
    "gen_ai_server_time_to_first_token_seconds",
    "gen_ai_server_time_per_output_token_seconds",
    "specdec_batch_size",
    "specdec_queue_seconds",
    "specdec_queue_depth",
    "specdec_compute_seconds",
    "specdec_kv_used_tokens",
    "specdec_kv_total_tokens",
    "specdec_forwards_total",
    "specdec_rows_total",
    "specdec_draws_total",
}


def families(scrape: str) -> set[str]:
    """Names as queries use them, histograms without their suffix."""
    return set(re.findall(r"^# TYPE (\S+)", scrape, re.MULTILINE))


def get(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        body: bytes = response.read()
    return body.decode()


def test_a_live_scrape_shows_exactly_the_contracts_names() -> None:
    with Telemetry.start("coordinator", env={}, metrics_port=0) as telemetry:
        for metrics in (CoordinatorMetrics(telemetry), ReplicaMetrics(telemetry)):
            use_all(metrics)
        shown = get(telemetry.metrics_port)
        assert telemetry.failures.count == 0
    assert families(shown) >= CONTRACT
    for line in shown.splitlines():
        if not line.startswith(("#", "target_info")):
            assert line.startswith(("specdec_", "gen_ai_server_"))
            assert 'service_name="coordinator"' in line
            assert "otel_scope" not in line
    assert 'specdec_num_accepted_tokens_per_pos_total{position="x",service_name="coordinator"} 1.0' in shown
    assert 'specdec_phase_seconds_bucket{le="5e-05",phase="x",service_name="coordinator"} 0.0' in shown


def test_counters_without_labels_are_shown_from_the_start() -> None:
    telemetry = Telemetry.start("x", env={})
    CoordinatorMetrics(telemetry)
    assert 'specdec_num_drafts_total{service_name="x"} 0.0' in telemetry.scrape()


def test_a_gauge_shows_the_last_value_or_what_its_function_says_now() -> None:
    telemetry, waiting = Telemetry.start("x", env={}), [3]
    metrics = ReplicaMetrics(telemetry)
    metrics.queue_depth.set(lambda: waiting[0])
    metrics.kv_total_tokens.set(10)
    metrics.kv_total_tokens.set(20)
    assert 'specdec_queue_depth{service_name="x"} 3.0' in telemetry.scrape()
    waiting[0] = 4
    shown = telemetry.scrape()
    assert 'specdec_queue_depth{service_name="x"} 4.0' in shown
    assert 'specdec_kv_total_tokens{service_name="x"} 20.0' in shown


class Overlap:
    """A collector that notices another scrape inside it."""

    def __init__(self) -> None:
        self.seen = False
        self._both = threading.Barrier(2, timeout=0.2)

    def collect(self) -> list[Metric]:
        try:
            self._both.wait()
            self.seen = True
        except threading.BrokenBarrierError:
            pass
        return []


def test_scrapes_at_the_same_time_take_turns_and_each_see_everything() -> None:
    overlap, telemetry = Overlap(), Telemetry.start("x", env={})
    use_all(CoordinatorMetrics(telemetry))
    telemetry._registry.register(overlap)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: families(telemetry.scrape()), range(2))
    assert not overlap.seen
    assert one == other
    assert "specdec_num_drafts_total" in one


def test_the_port_is_closed_on_shutdown_and_one_in_use_is_a_configuration_error() -> None:
    with Telemetry.start("x", env={}, metrics_port=0) as telemetry:
        port = telemetry.metrics_port
        with pytest.raises(ConfigError, match="metrics_port"):
            Telemetry.start("y", env={}, metrics_port=port)
    with pytest.raises(urllib.error.URLError):
        get(port)


class BrokenTotals(dict[Any, int]):
    """Can be read and not written."""

    def __setitem__(self, *_: object) -> None:
        raise OSError("backend down")


@pytest.mark.scenario("B113")
def test_a_metrics_call_never_raises_and_failures_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative step, a wrong label, and a backend that breaks."""
    telemetry = Telemetry.start("x", env={})
    metrics, replica = CoordinatorMetrics(telemetry), ReplicaMetrics(telemetry)
    metrics.num_drafts.add(-1)
    metrics.fallbacks.add(1)
    metrics.exact_alpha.record(0.5, position=1)
    replica.queue_depth.set(1, role="draft")
    assert telemetry.failures.count == 4

    def broken(*_: object) -> None:
        raise OSError("backend down")

    monkeypatch.setattr(metrics.num_drafts, "_totals", BrokenTotals({(): 0}))
    monkeypatch.setattr(metrics.cycle_seconds._inner, "record", broken)
    for _ in range(3):
        metrics.num_drafts.add(1)
        metrics.cycle_seconds.record(0.1)
    replica.running.set(lambda: 1 // 0)
    telemetry.scrape()
    shown = telemetry.scrape()
    assert telemetry.failures.count == 12
    assert 'specdec_metric_failures_total{service_name="x"}' in shown
    assert 'specdec_num_drafts_total{service_name="x"} 0.0' in shown
    failing = [record.getMessage() for record in caplog.records]
    assert len([m for m in failing if "specdec_num_drafts_total" in m]) == 1
    assert len(failing) == 6


def test_a_disabled_sdk_measures_and_traces_nothing() -> None:
    env = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with Telemetry.start("x", env=env) as telemetry:
        use_all(CoordinatorMetrics(telemetry))
        assert not telemetry.tracing
        assert telemetry.scrape() == ""
        assert telemetry.failures.count == 0


@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
def test_a_protocol_that_is_not_built_in_is_a_configuration_error(signal: str) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL": "http/protobuf",
    }
    with pytest.raises(ConfigError, match="grpc"):
        Telemetry.start("x", env=env)


def test_every_name_is_unique() -> None:
    constants = [value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)]
    assert len(constants) == len(set(constants))
    telemetry = Telemetry.start("x", env={})
    both = [*vars(CoordinatorMetrics(telemetry)).values(), *vars(ReplicaMetrics(telemetry)).values()]
    assert len({instrument.name for instrument in both}) == len(both)


async def test_metrics_may_be_called_from_any_thread() -> None:
    telemetry = Telemetry.start("x", env={})
    metrics = ReplicaMetrics(telemetry)

    def work() -> None:
        for _ in range(1000):
            metrics.rows.add(2)

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    assert 'specdec_rows_total{service_name="x"} 8000.0' in telemetry.scrape()
