"""A grpc.aio server with what all three services share: limits, keepalive, health, reflection, one error
boundary, and a drain on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from specdec.core.errors import ConfigError
from specdec.edge.channel import (
    MAX_MESSAGE_BYTES,
    MIN_PING_INTERVAL_MS,
    ChannelOptions,
    common_options,
)
from specdec.edge.errors import Context, error_boundary
from specdec.edge.interceptors import Around, Parsing
from specdec.edge.tls import Tls

CLEAN_UP_SECONDS = 5.0
LIVE = "live"  # the name in grpc.health.v1 that tells whether a restart would help

_log = logging.getLogger(__name__)


def server_options(max_message_bytes: int, max_connection_age: float | None) -> ChannelOptions:
    """max_connection_age in seconds: for a port that many clients find by one DNS name, else None."""
    options = [
        *common_options(max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        # Two servers on one port would share its traffic in silence.
        ("grpc.so_reuseport", 0),
    ]
    if max_connection_age is not None:
        options.append(("grpc.max_connection_age_ms", round(max_connection_age * 1000)))
    return options


class GrpcServer:
    """services: full name ("specdec.v1.DraftService") -> what registers its servicer, for instance
    `partial(draft_pb2_grpc.add_DraftServiceServicer_to_server, servicer)`. port 0: any free one, see `.port`.

    `async with` binds and starts; health is NOT_SERVING until `set_serving`. Leaving the block ends
    every call at once; `run_until_signal` is the graceful way. Raises ConfigError if the port cannot be
    bound.

    tls: None: in clear. clients: with an authority in `tls`, whoever connects must show a certificate of its."""

    def __init__(
        self,
        services: Mapping[str, Callable[[grpc.aio.Server], None]],
        *,
        port: int,
        host: str = "[::]",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_connection_age: float | None = None,
        tls: Tls | None = None,
        clients: bool = True,
    ) -> None:
        self._services = dict(services)
        self._address = f"{host}:{port}"
        self._options = server_options(max_message_bytes, max_connection_age)
        self._in_flight = _InFlight()
        self._tls = tls
        self._clients = clients
        self._leaving = False
        self.port = port

    @property
    def active_calls(self) -> int:
        """Calls of the services in progress; health and reflection do not count."""
        return self._in_flight.count

    async def idle(self) -> None:
        """Returns when no call of the services is in progress."""
        await self._in_flight.none.wait()

    async def leave(self) -> None:
        """From here on no new calls may come, whatever `set_serving` is told."""
        self._leaving = True
        await self.set_serving(False)

    async def set_serving(self, serving: bool, *, live: bool = True) -> None:
        """What grpc.health.v1 answers. serving: for "" and for each service, whether new calls may come. live: for
        LIVE; False: it will not serve again by itself, or has not come up yet. Load, a drain or the loss of others
        change the first and never the second: a restart would mend none of them."""
        kinds = health_pb2.HealthCheckResponse
        answers = {LIVE: live, **dict.fromkeys(("", *self._services), serving and not self._leaving)}
        for name, well in answers.items():
            await self._health.set(name, kinds.SERVING if well else kinds.NOT_SERVING)

    async def stop(self, grace: float | None = None) -> None:
        """Refuses new calls; those in progress are cancelled after `grace` seconds, None: at once. Returns when their
        handlers have cleaned up, which grpc.aio does not wait for."""
        await self._server.stop(grace)
        try:
            async with asyncio.timeout(CLEAN_UP_SECONDS):
                await self.idle()
        except TimeoutError:
            _log.error("%d cancelled calls have not cleaned up", self.active_calls)

    async def __aenter__(self) -> Self:
        interceptors = [Around(self._in_flight.guard), Around(error_boundary), Parsing()]
        self._server = grpc.aio.server(interceptors=interceptors, options=self._options)
        for register in self._services.values():
            register(self._server)
        self._health = HealthServicer()
        await self.set_serving(False, live=False)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*self._services, "grpc.health.v1.Health", reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        try:
            self.port = self._bound()
        except RuntimeError as error:
            raise ConfigError("port", self._address, f"cannot be bound: {error}") from None
        await self._server.start()
        return self

    def _bound(self) -> int:
        if self._tls is None:
            return int(self._server.add_insecure_port(self._address))
        clients = self._clients and self._tls.authority is not None
        return int(self._server.add_secure_port(self._address, self._tls.server_credentials(clients=clients)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


async def run_until_signal(server: GrpcServer, drain: Callable[[], Awaitable[None]], grace: float) -> None:
    """Waits for SIGTERM or SIGINT; then NOT_SERVING, `drain()`, calls in progress finish, stop: within
    `grace` seconds altogether, or at once on a second signal. What is still running then is cancelled."""
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await first.wait()
        _log.info("draining %d calls, at most %.1f s", server.active_calls, grace)
        await server.leave()
        await _drain(server, drain, second, grace)
        await server.stop()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _drain(server: GrpcServer, drain: Callable[[], Awaitable[None]], hurry: asyncio.Event, grace: float) -> None:
    async def work() -> None:
        await drain()
        await server.idle()

    tasks = {asyncio.create_task(work(), name="drain"), asyncio.create_task(hurry.wait(), name="hurry")}
    try:
        await asyncio.wait(tasks, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.error("drain failed; stopping all the same", exc_info=outcome)
    _log.info("drained; %d calls left", server.active_calls)


class _InFlight:
    """Counts the calls of the services."""

    def __init__(self) -> None:
        self.count = 0
        self.none = asyncio.Event()
        self.none.set()

    @asynccontextmanager
    async def guard(self, _: Context, method: str) -> AsyncIterator[None]:
        if method.startswith("/grpc."):
            yield
            return
        self.count += 1
        self.none.clear()
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self.none.set()
