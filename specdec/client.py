"""What callers import: `Client` for asyncio, `BlockingClient` for everyone else, and the errors that they raise."""

from specdec.core.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SpecdecError,
    Unauthenticated,
    Unavailable,
)
from specdec.edge.blocking_client import BlockingClient
from specdec.edge.client import Client
from specdec.edge.received import Event
from specdec.edge.tls import Tls, read_tls

__all__ = [
    "Aborted",
    "BlockingClient",
    "Client",
    "DeadlineExceeded",
    "Event",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "ResourceExhausted",
    "SpecdecError",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "read_tls",
]
