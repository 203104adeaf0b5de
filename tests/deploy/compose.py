"""What docker-compose.yml must keep to. A check is a function of the parsed file that returns sentences, each naming
what is wrong; CHECKS lists them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from coordinator.config import CoordinatorConfig
from draft_service.config import DraftConfig
from specdec.core.errors import ConfigError
from specdec.edge.config import read_config
from specdec.edge.otel import FLUSH_BUDGET
from specdec.edge.server import CLEAN_UP_SECONDS
from target_service.config import TargetConfig

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
CONFIGS: Mapping[str, type[Any]] = {"coordinator": CoordinatorConfig, "draft": DraftConfig, "target": TargetConfig}
ADDRESSES = ("target_addresses", "draft_addresses", "session_store_url", "kv_store_url")
REDIS_PORT = 6379
HEADROOM = 1.5  # memory of a Redis' container over what it may hold
# What else may stand in the environment of our processes: of OpenTelemetry, OpenMP, Python, the hub.
OTHERS = re.compile(r"OTEL_[A-Z_]+|OMP_NUM_THREADS|GOMP_SPINCOUNT|PYTHON[A-Z]+|HF_[A-Z_]+|NVIDIA_[A-Z_]+|CUDA_[A-Z_]+")
_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

Compose = Mapping[str, Any]


def read_compose(file: Path = FILE) -> Compose:
    parsed: Compose = yaml.safe_load(file.read_text())
    return parsed


def services(compose: Compose) -> Mapping[str, Any]:
    found: Mapping[str, Any] = compose["services"]
    return found


def built(compose: Compose) -> dict[str, str]:
    """service -> image, of those that are built here."""
    return {name: service["image"] for name, service in services(compose).items() if "build" in service}


def pulled(compose: Compose) -> set[str]:
    """Images of others, of what runs without a profile."""
    ours = services(compose).values()
    return {service["image"] for service in ours if "build" not in service and "profiles" not in service}


def is_setting(name: str, key: str) -> bool:
    """Whether the process, or a library in it, reads this variable."""
    return key.lower() in CONFIGS[name].__dataclass_fields__ or bool(OTHERS.fullmatch(key))


def environment_names(compose: Compose) -> Iterator[str]:
    """Every setting is one that the process reads."""
    for name, cls in CONFIGS.items():
        known = {field.name.upper() for field in fields(cls)}
        for key in services(compose)[name].get("environment", {}):
            if not is_setting(name, key):
                near = difflib.get_close_matches(key, known, 1)
                yield f"{name} has no setting {key}" + (f"; {near[0]} is meant?" if near else "")


def settings(compose: Compose) -> Iterator[str]:
    """Every process would start with what it is given."""
    for name in CONFIGS:
        try:
            config(compose, name)
        except ConfigError as error:
            yield f"{name} does not start: {error}"


def config(compose: Compose, name: str) -> Any:
    """As the process reads it, with its image's own. Raises ConfigError."""
    given = {key: str(value) for key, value in services(compose)[name].get("environment", {}).items()}
    return read_config(CONFIGS[name], [], given, name)


def addresses(compose: Compose) -> Iterator[str]:
    """Whoever is asked for at an address is there, at that port."""
    serves = {name: cls.__dataclass_fields__["port"].default for name, cls in CONFIGS.items()}
    serves |= {name: REDIS_PORT for name, service in services(compose).items() if service["image"].startswith("redis:")}
    for name in CONFIGS:
        given = services(compose)[name].get("environment", {})
        for address in ADDRESSES:
            for host, port in re.findall(r"([\w-]+):(\d+)", str(given.get(address.upper(), ""))):
                if host not in serves:
                    yield f"{name}: {address.upper()} names {host}, which is no service"
                elif serves[host] != int(port):
                    yield f"{name}: {address.upper()} asks {host} at {port}, it serves at {serves[host]}"


def published_ports(compose: Compose) -> Iterator[str]:
    """The coordinator's is reached from this host, all ports from nowhere else; what scales publishes none."""
    port = CONFIGS["coordinator"].__dataclass_fields__["port"].default
    if not any(str(p).endswith(f":{port}") for p in services(compose)["coordinator"].get("ports", [])):
        yield f"coordinator does not publish its port {port}"
    for name, service in services(compose).items():
        for published in service.get("ports", []):
            if not str(published).startswith("127.0.0.1:"):
                yield f"{name} publishes {published} to other machines: begin with 127.0.0.1:"
    for name in ("draft", "target"):
        for key in ("ports", "container_name", "hostname"):
            if key in services(compose)[name]:
                yield f"{name} has {key}, so it cannot be scaled"


def start_order(compose: Compose) -> Iterator[str]:
    """Nobody starts before what it cannot do without."""
    wanted = {
        "coordinator": {"redis": "service_healthy", "target": "service_healthy"},
        "target": {"redis-kv": "service_healthy"},
        "draft": {},
    }
    for name, needs in wanted.items():
        waits = services(compose)[name].get("depends_on", {})
        waits = waits if isinstance(waits, dict) else {key: {"condition": "service_started"} for key in waits}
        for other, condition in {**needs, "model": "service_completed_successfully"}.items():
            found = waits.get(other, {}).get("condition")
            if found != condition:
                yield f"{name} does not wait for {other} to be {condition} but {found}"
    for name, service in services(compose).items():
        if service["image"].startswith("redis:") and "PONG" not in str(service.get("healthcheck", {}).get("test")):
            yield f"{name} has no healthcheck that asks it for PONG"


def graces(compose: Compose) -> Iterator[str]:
    """A process that drains as long as it may is not killed."""
    for name in CONFIGS:
        stop = seconds(str(services(compose)[name].get("stop_grace_period", "10s")))
        try:
            drain = float(config(compose, name).drain_grace)
        except ConfigError:
            continue  # which `settings` tells
        if stop <= drain + CLEAN_UP_SECONDS + FLUSH_BUDGET:
            after = f"{CLEAN_UP_SECONDS:.0f} s for cancelled calls and {FLUSH_BUDGET:.0f} s for spans"
            yield f"{name}: stop_grace_period of {stop:.0f} s is not above DRAIN_GRACE of {drain:.0f} s, {after}"


def hardening(compose: Compose) -> Iterator[str]:
    """Read-only roots, no capabilities, no new privileges; images of ours bring their user."""
    for name, service in services(compose).items():
        if service.get("read_only") is not True:
            yield f"{name}: the root file system can be written to: read_only: true"
        if service.get("cap_drop") != ["ALL"] or service.get("cap_add"):
            yield f"{name} keeps capabilities: cap_drop: [ALL]"
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield f"{name} may gain privileges: security_opt: [no-new-privileges:true]"
        if service["image"].startswith("redis:") and str(service.get("user", "0")).split(":")[0] in ("0", "root"):
            yield f"{name} runs as root: give a user"


def pinned_images(compose: Compose) -> Iterator[str]:
    """No tag that moves from one version to another."""
    for name, service in services(compose).items():
        tag = service["image"].rpartition("/")[2].partition(":")[2]
        if not re.match(r"v?\d+\.\d+", tag):
            yield f"{name}: {service['image']} is not pinned to a version"


def memory(compose: Compose) -> Iterator[str]:
    """Sessions are never evicted, keys and values may be; a Redis stays within its container's memory."""
    for name, policy, kept in (("redis", "noeviction", "yes"), ("redis-kv", "allkeys-lru", "no")):
        options = redis_options(services(compose)[name])
        for option, value in (("maxmemory-policy", policy), ("appendonly", kept)):
            if options.get(option) != value:
                yield f"{name} has {option} {options.get(option)}, not {value}"
        most, limit = size(options.get("maxmemory", "0")), size(str(services(compose)[name].get("mem_limit", "0")))
        if not most or limit < HEADROOM * most:
            yield f"{name}: mem_limit {limit >> 20} MiB is not {HEADROOM} times maxmemory {most >> 20} MiB"
    given = services(compose)["target"].get("environment", {})
    store = re.search(r"//([\w-]+):", str(given.get("KV_STORE_URL", "")))
    if store and store[1] in services(compose):
        yield from _kv_budget(store[1], services(compose)[store[1]], int(given.get("KV_STORE_BYTES", 0)))


def _kv_budget(name: str, redis: Mapping[str, Any], budget: int) -> Iterator[str]:
    options = redis_options(redis)
    most = size(options.get("maxmemory", "0"))
    if budget and budget >= most:
        yield f"KV_STORE_BYTES of {budget >> 20} MiB is not below maxmemory of {name}, {most >> 20} MiB"
    if not budget and options.get("maxmemory-policy") == "noeviction":
        yield f"keys and values go to {name}, which evicts nothing, without a KV_STORE_BYTES below its maxmemory"


def mounted_files(compose: Compose) -> Iterator[str]:
    """What is mounted from the repository is in it, and cannot be written to."""
    for name, service in services(compose).items():
        for volume in service.get("volumes", []):
            source, _, rest = volume.partition(":")
            if source.startswith("."):
                if not (ROOT / source).exists():
                    yield f"{name} mounts {source}, which is not there"
                if not rest.endswith(":ro"):
                    yield f"{name} may write to {source}: end with :ro"
            elif source not in compose["volumes"]:
                yield f"{name} mounts the volume {source}, which is not declared"


CHECKS: Mapping[str, Callable[[Compose], Iterator[str]]] = {
    check.__name__: check
    for check in (
        *(environment_names, settings, addresses, published_ports, start_order, graces),
        *(hardening, pinned_images, memory, mounted_files),
    )
}


def redis_options(service: Mapping[str, Any]) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+) (\S+)", str(service.get("command", ""))))


def seconds(duration: str) -> float:
    match = _DURATION.fullmatch(duration)
    assert match, f"{duration} is no duration like 1m30s"
    return 60.0 * int(match[1] or 0) + int(match[2] or 0)


def size(text: str) -> int:
    """Bytes, of 512mb as Redis and Compose write it, or 512Mi as Kubernetes does."""
    match = re.fullmatch(r"(\d+)([kmg]?)[bi]?", text.lower())
    assert match, f"{text} is no size like 512mb"
    return int(match[1]) * _BYTES[match[2]]
