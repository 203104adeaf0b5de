"""OpenTelemetry without process globals: one `Telemetry` object per process, wired in `__main__`. Names of
spans and metrics live in `specdec.edge.telemetry`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric

from specdec.core.errors import ConfigError, SpecdecError
from specdec.edge.instruments import Counter, Failures, Gauge, Histogram

FLUSH_BUDGET = 5.0  # seconds that an unreachable collector may cost at exit

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Parent = Span | str | None
OFF: Span = trace.INVALID_SPAN

_OFF: AbstractContextManager[Span] = nullcontext(OFF)
_PROPAGATOR = TraceContextTextMapPropagator()
_log = logging.getLogger(__name__)


class Telemetry:
    """Traces go to OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT, metrics to OTEL_EXPORTER_OTLP_[METRICS_]ENDPOINT,
    both by gRPC, each only where set; metrics can be scraped in any case. OTEL_SDK_DISABLED,
    OTEL_SERVICE_NAME, OTEL_{TRACES,METRICS}_EXPORTER=none and the SDK's own OTEL_* variables are respected.

    Parents of spans are given, never found in the surroundings: tasks and threads cannot lose or swap
    them."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, registry: CollectorRegistry):
        self._tracer = None if tracers is None else tracers.get_tracer("specdec")
        self._meter = (NoOpMeterProvider() if meters is None else meters).get_meter("specdec")
        self.failures = Failures(self._meter)
        self._registry = registry
        self._closers: list[Callable[[], Any]] = [p.shutdown for p in (tracers, meters) if p is not None]
        self._last_resort: list[Callable[[], Any]] = []
        self.flush_budget = FLUSH_BUDGET
        self.metrics_port: int | None = None

    @classmethod
    def start(
        cls,
        service_name: str,
        *,
        env: Mapping[str, str],
        metrics_port: int | None = None,
        span_exporter: SpanExporter | None = None,
    ) -> Self:
        """metrics_port: serves Prometheus' /metrics there, 0 any free port (then see `.metrics_port`), None
        nowhere. span_exporter: for tests; gets every span as it ends. Raises ConfigError."""
        resource = Resource.create({"service.name": env.get("OTEL_SERVICE_NAME") or service_name})
        registry = _Registry(auto_describe=False)
        if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            telemetry = cls(None, None, registry)
        else:
            exporters: list[Any] = []
            tracers = _tracers(resource, env, span_exporter, exporters)
            telemetry = cls(tracers, _meters(resource, env, registry, exporters), registry)
            telemetry._last_resort = [exporter.shutdown for exporter in exporters]
        if metrics_port is not None:
            telemetry._serve_metrics(metrics_port)
        return telemetry

    @property
    def tracing(self) -> bool:
        return self._tracer is not None

    def span(
        self,
        name: str,
        *,
        parent: Parent = None,
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> AbstractContextManager[Span]:
        """A span around a block. parent: a span, a traceparent, or nothing for a new trace. An exception that
        leaves the block, a cancellation too, makes the span an error of that type."""
        if self._tracer is None:
            return _OFF
        return _Around(self._tracer.start_span(name, _context(parent), kind, attributes))

    def record_span(
        self, name: str, parent: str, start_ns: int, end_ns: int, attributes: Attributes | None = None
    ) -> None:
        """A span of work that is over, e.g. one session's share of a batch. parent: the traceparent of the
        message that asked for it, "" records nothing. Times: `time.time_ns()`."""
        if self._tracer is None or not parent:
            return
        span = self._tracer.start_span(name, _context(parent), SpanKind.SERVER, attributes, start_time=start_ns)
        span.end(end_ns)

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(self._meter, self.failures, name, description, labels)

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(self._meter, self.failures, name, description, labels)

    def histogram(
        self,
        name: str,
        description: str,
        buckets: Sequence[float],
        labels: Sequence[str] = (),
        unit: str = "",
    ) -> Histogram:
        return Histogram(self._meter, self.failures, name, description, buckets, labels, unit)

    def scrape(self) -> str:
        """What /metrics answers."""
        return generate_latest(self._registry).decode()

    def shutdown(self) -> None:
        """Exports what is buffered; returns within `flush_budget` seconds even if no collector answers."""
        deadline = time.monotonic() + self.flush_budget
        closers, self._closers = self._closers, []
        threads = [threading.Thread(target=_quietly, args=(close,), daemon=True) for close in closers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _log.warning("telemetry not flushed within %.1f s: given up", self.flush_budget)
            for close in self._last_resort:
                _quietly(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _serve_metrics(self, port: int) -> None:
        try:
            server, thread = start_http_server(port, registry=self._registry)
        except OSError as error:
            raise ConfigError("metrics_port", port, f"cannot be bound: {error}") from None

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._closers.append(close)
        self.metrics_port = server.server_port


def traceparent(span: Span) -> str:
    """W3C trace context of a span; "" when tracing is off."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class _Around(AbstractContextManager[Span]):
    """Ends the span with the block."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            reason = _error_type(error)
            self._span.set_attribute("error.type", reason)
            self._span.set_status(Status(StatusCode.ERROR, str(error) or reason))
        self._span.end()


def _error_type(error: BaseException) -> str:
    if isinstance(error, SpecdecError):
        return error.reason
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else type(error).__name__


def _context(parent: Parent) -> Context:
    if not parent:
        return Context()
    if isinstance(parent, str):
        return _PROPAGATOR.extract({"traceparent": parent}, Context())
    return trace.set_span_in_context(parent, Context())


def _endpoint(env: Mapping[str, str], signal: str) -> str | None:
    if env.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return None
    endpoint = env.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    name = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = env.get(name) or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if endpoint and protocol != "grpc":
        raise ConfigError("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "must be grpc: no other exporter is built in")
    return endpoint or None


def _tracers(
    resource: Resource, env: Mapping[str, str], given: SpanExporter | None, exporters: list[Any]
) -> TracerProvider | None:
    endpoint = _endpoint(env, "TRACES")
    if given is None and endpoint is None:
        return None
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, meter_provider=NoOpMeterProvider())
    if given is not None:
        provider.add_span_processor(SimpleSpanProcessor(given, meter_provider=NoOpMeterProvider()))
    else:
        exporters.append(OTLPSpanExporter(endpoint=endpoint))
        provider.add_span_processor(BatchSpanProcessor(exporters[-1], meter_provider=NoOpMeterProvider()))
    return provider


def _meters(
    resource: Resource, env: Mapping[str, str], registry: CollectorRegistry, exporters: list[Any]
) -> MeterProvider:
    readers: list[MetricReader] = [
        PrometheusMetricReader(
            scope_info_enabled=False,
            resource_attribute_filter=lambda key: key == "service.name",
            registry=registry,
        )
    ]
    if (endpoint := _endpoint(env, "METRICS")) is not None:
        exporters.append(OTLPMetricExporter(endpoint=endpoint))
        readers.append(PeriodicExportingMetricReader(exporters[-1]))
    return MeterProvider(readers, resource, shutdown_on_exit=False)


class _Registry(CollectorRegistry):
    """One scrape at a time: the reader hands its points over in a queue that two scrapes would steal from
    each other."""

    def __init__(self, auto_describe: bool) -> None:
        super().__init__(auto_describe=auto_describe)
        self._one = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        with self._one:
            families = list(super().collect())
        return iter(families)


def _quietly(close: Callable[[], Any]) -> None:
    try:
        close()
    except Exception:
        _log.exception("closing telemetry failed")
