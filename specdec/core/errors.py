"""The error tree. A caller's mistake names the field, its value and the remedy; one boundary
(`specdec.edge.server`) turns these into gRPC statuses. Anything else that is raised is a bug."""

from __future__ import annotations


class SpecdecError(Exception):
    """Root of everything this project raises on purpose. `reason` is stable and machine-readable."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class InvalidArgument(SpecdecError):
    """The request can never be served as it stands."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class ConfigError(InvalidArgument):
    """A process was started with a setting that cannot work."""

    reason = "CONFIG"


class Unauthenticated(SpecdecError):
    """The caller has shown no key, or none that is known."""

    reason = "UNAUTHENTICATED"


class NotFound(SpecdecError):
    reason = "SESSION_NOT_FOUND"


class FailedPrecondition(SpecdecError):
    reason = "SESSION_BUSY"


class Aborted(SpecdecError):
    """A newer owner has taken the session over."""

    reason = "SUPERSEDED"


class DeadlineExceeded(SpecdecError):
    reason = "DEADLINE"


class Unavailable(SpecdecError):
    """Try again: nothing that was emitted is lost. `retry_after` in seconds."""

    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, reason: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, reason=reason)
        self.retry_after = retry_after


class ResourceExhausted(Unavailable):
    """Refused before memory is at risk."""

    reason = "OVERLOADED"


class ReplicaFault(SpecdecError):
    """A replica answered what no healthy replica answers. Never reaches a client as it is."""

    reason = "REPLICA_FAULT"


class DraftFault(ReplicaFault):
    """A draft that must not be judged: wrong shape, impossible law, or tokens not drawn from the reported law."""

    reason = "BAD_DRAFT"
