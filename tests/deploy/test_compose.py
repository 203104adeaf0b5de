"""docker-compose.yml, without an engine; and that every mistake in it would be named."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.deploy.compose import CHECKS, FILE, ROOT, built, read_compose, services
from tests.deploy.images import FOLDERS, version

Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize("check", CHECKS)
def test_the_compose_file_keeps_to_every_check(check: str) -> None:
    assert list(CHECKS[check](read_compose())) == []


def of(service: str, **fields: Any) -> Edit:
    """Sets fields of a service."""
    return lambda compose: compose["services"][service].update(fields)


def environment(service: str, **settings: Any) -> Edit:
    return lambda compose: compose["services"][service]["environment"].update(settings)


def without(service: str, field: str) -> Edit:
    return lambda compose: compose["services"][service].pop(field)


def command(service: str, old: str, new: str) -> Edit:
    def edit(compose: dict[str, Any]) -> None:
        one = compose["services"][service]
        assert old in one["command"]
        one["command"] = one["command"].replace(old, new)

    return edit


def waits(service: str, other: str, condition: str) -> Edit:
    return lambda compose: compose["services"][service]["depends_on"].update({other: {"condition": condition}})


MISTAKES: list[tuple[str, Edit, str]] = [
    ("environment_names", environment("coordinator", TARGET_ADRESSES="target:50053"), "TARGET_ADDRESSES is meant"),
    ("environment_names", environment("draft", SESSION_STORE_URL="redis://redis:6379/0"), "draft has no setting"),
    ("settings", environment("target", KV_TOKENS="many"), "kv_tokens"),
    ("settings", environment("draft", DRAFTERS="telepathy"), "telepathy"),
    ("addresses", environment("coordinator", TARGET_ADDRESSES="target:50051"), "it serves at 50053"),
    ("addresses", environment("coordinator", DRAFT_ADDRESSES="drafts:50052"), "drafts, which is no service"),
    ("addresses", environment("target", KV_STORE_URL="redis://redis-kv:6380/0"), "it serves at 6379"),
    ("published_ports", of("coordinator", ports=["127.0.0.1:50050:50051"]), "does not publish its port 50050"),
    ("published_ports", of("coordinator", ports=["50050:50050"]), "to other machines"),
    ("published_ports", of("draft", container_name="drafter"), "draft has container_name"),
    ("start_order", waits("coordinator", "target", "service_started"), "target to be service_healthy"),
    ("start_order", waits("draft", "model", "service_started"), "model to be service_completed_successfully"),
    ("start_order", without("redis", "healthcheck"), "redis has no healthcheck"),
    ("graces", of("target", stop_grace_period="25s"), "stop_grace_period of 25 s is not above"),
    ("graces", environment("draft", DRAIN_GRACE="60"), "DRAIN_GRACE of 60 s"),
    ("hardening", without("coordinator", "read_only"), "can be written to"),
    ("hardening", of("target", cap_add=["SYS_ADMIN"]), "target keeps capabilities"),
    ("hardening", without("jaeger", "security_opt"), "jaeger may gain privileges"),
    ("hardening", of("redis", user="root"), "redis runs as root"),
    ("pinned_images", of("redis", image="redis:alpine"), "redis:alpine is not pinned"),
    ("pinned_images", of("grafana", image="grafana/grafana"), "grafana/grafana is not pinned"),
    ("memory", command("redis", "noeviction", "allkeys-lru"), "redis has maxmemory-policy allkeys-lru"),
    ("memory", command("redis", "--appendonly yes", "--appendonly no"), "redis has appendonly no"),
    ("memory", command("redis-kv", "512mb", "700mb"), "mem_limit 768 MiB"),
    ("memory", environment("target", KV_STORE_BYTES=str(1 << 30)), "KV_STORE_BYTES of 1024 MiB is not below"),
    ("memory", environment("target", KV_STORE_URL="redis://redis:6379/1"), "redis, which evicts nothing"),
    ("mounted_files", of("collector", volumes=["./observability/colector.yaml:/c.yaml:ro"]), "which is not there"),
    ("mounted_files", of("collector", volumes=["./README.md:/c.yaml"]), "may write to ./README.md"),
    ("mounted_files", of("redis", volumes=["session:/data"]), "the volume session, which is not declared"),
]


@pytest.mark.parametrize(("check", "edit", "words"), MISTAKES, ids=[f"{c}-{w}" for c, _, w in MISTAKES])
def test_a_mistake_is_named(check: str, edit: Edit, words: str) -> None:
    spoilt = copy.deepcopy(dict(read_compose()))
    edit(spoilt)
    sentences = list(CHECKS[check](spoilt))
    assert any(words in sentence for sentence in sentences), sentences


def test_every_check_has_a_mistake_that_it_names() -> None:
    assert {check for check, _, _ in MISTAKES} == set(CHECKS)


def test_what_is_built_here_carries_this_version_and_is_made_from_its_service() -> None:
    compose = read_compose()
    assert built(compose) == {name: f"specdec/{name}:{version()}" for name in (*FOLDERS, "model")}
    files = {name: services(compose)[name]["build"]["dockerfile"] for name in built(compose)}
    assert files == {name: f"{folder}/Dockerfile" for name, folder in {**FOLDERS, "model": "target_service"}.items()}


def test_compose_itself_takes_the_file_and_sends_spans_only_where_the_profile_runs() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("there is no `docker compose` here; the checks above read the file without it")
    for profiles, endpoint in (("", ""), ("observability", "http://collector:4317")):
        done = subprocess.run(
            ["docker", "compose", "--file", str(FILE), "config"],
            env={**os.environ, "COMPOSE_PROFILES": profiles},
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        resolved = yaml.safe_load(done.stdout)
        given = resolved["services"]["coordinator"]["environment"]["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
        assert (given or "") == endpoint
        assert ("grafana" in resolved["services"]) == bool(profiles)
