"""Store URLs. A password never appears in a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from specdec.core.errors import ConfigError

DEFAULT_PORTS = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "redis+cluster": 6379}


@dataclass(frozen=True)
class StoreAddress:
    """scheme://username:password@host:port,host:port/path?options, percent-decoded."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.hosts)}"

    def number(self, option: str, default: int) -> int:
        """A non-negative integer option. Raises ConfigError."""
        text = self.options.get(option, str(default))
        if not text.isdecimal():
            raise ConfigError(f"store option {option}", text, "give a whole number that is not negative")
        return int(text)

    def allow(self, *options: str) -> None:
        """Raises ConfigError for an option that this kind of store does not have."""
        for name in self.options:
            if name not in options:
                raise ConfigError("store option", name, f"{self.scheme}:// takes {', '.join(options)}")


def parse_address(url: str) -> StoreAddress:
    """Raises ConfigError for hosts that cannot be read."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(url.partition("://")[0]) from None
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    return StoreAddress(
        scheme=parts.scheme,
        hosts=tuple(_host(text, parts) for text in hosts.split(",") if text),
        username=unquote(username) or None,
        password=unquote(password) or None,
        path=unquote(parts.path.strip("/")),
        options=dict(parse_qsl(parts.query, keep_blank_values=True)),
    )


def _host(text: str, parts: SplitResult) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORTS.get(parts.scheme, 0))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise _unreadable(parts.scheme)
    return host.strip("[]"), int(port)


def _unreadable(scheme: str) -> ConfigError:
    """Shows nothing of the URL: what stands where a host should may be a piece of a password."""
    remedy = "write host:port,host:port behind it; percent-encode / @ : ? in a password"
    return ConfigError("store URL", f"{scheme}://...", remedy)
