"""An OTLP/gRPC collector in the test's own process, on threads: it answers even while the test's event loop waits.
Give other processes `OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint` and a short `OTEL_BSP_SCHEDULE_DELAY`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Ids in hex; parent_id "" at the root of a trace."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    error: str


class OtlpReceiver:
    """`with OtlpReceiver() as receiver:`; spans in order of arrival, metrics as names seen. host: whose interface is
    listened on."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self.spans: list[ReceivedSpan] = []
        self.metrics: set[str] = set()
        self._arrived = threading.Condition()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 30.0) -> bool:
        """Whether the condition on spans and metrics came true. Blocks: in async tests use `asyncio.to_thread`."""
        with self._arrived:
            return self._arrived.wait_for(condition, timeout)

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_traces: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
        add_traces(_Traces(self), self._server)
        add_metrics(_Metrics(self), self._server)
        self.endpoint = f"http://{self._host}:{self._server.add_insecure_port(f'{self._host}:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def add(self, spans: list[ReceivedSpan], metrics: set[str]) -> None:
        with self._arrived:
            self.spans += spans
            self.metrics |= metrics
            self._arrived.notify_all()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, _: Any) -> Any:
        spans = []
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            spans += [_received(service, span) for scope in resource.scope_spans for span in scope.spans]
        self._receiver.add(spans, set())
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, _: Any) -> Any:
        scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
        self._receiver.add([], {metric.name for scope in scopes for metric in scope.metrics})
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _received(service: str, span: Any) -> ReceivedSpan:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    failed = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else ""
    return ReceivedSpan(service, span.name, *ids, _attributes(span.attributes), *times, failed)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_plain(item) for item in value.array_value.values)
    return getattr(value, kind) if kind else None
