"""How every client of ours opens a channel, and the limits that both ends must agree on."""

from __future__ import annotations

import grpc.aio

from specdec.edge.tls import Tls

# A verify reply with logprobs of a large tree, or a whole 128k context, is well under this.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
# Pings that come faster than a server allows end every stream of the channel (GOAWAY too_many_pings).
MIN_PING_INTERVAL_MS = 10_000
MAX_RECONNECT_BACKOFF_MS = 2_000

ChannelOptions = list[tuple[str, int]]


def common_options(max_message_bytes: int) -> ChannelOptions:
    """Options that both ends carry."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def channel_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> ChannelOptions:
    return [
        *common_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
        # Retries belong to the coordinator: only it knows what a repeat may change.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def open_channel(
    address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES, tls: Tls | None = None, server_name: str | None = None
) -> grpc.aio.Channel:
    """One channel per replica; connects lazily. Close it, or use it as `async with`. tls: None: in clear. server_name:
    what the certificate must say, None: the address."""
    options: list[tuple[str, int | str]] = [*channel_options(max_message_bytes)]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
