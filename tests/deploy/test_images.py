"""The Dockerfiles, without an engine; and that every mistake in one would be named."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.deploy.compose import ROOT
from tests.deploy.images import CHECKS, DOCKERFILES, FOLDERS, bases, extra, parse_dockerfile, read_dockerfile
from tests.test_layout import OURS, imports


@pytest.mark.parametrize("service", DOCKERFILES)
@pytest.mark.parametrize("check", CHECKS)
def test_every_dockerfile_keeps_to_every_check(service: str, check: str) -> None:
    assert list(CHECKS[check](read_dockerfile(service))) == []


MISTAKES = [
    ("pinned_bases", "target", "FROM python:3.11-slim-bookworm AS build", "FROM python:latest AS build", "not pinned"),
    ("user", "draft", "USER 10001:10001", "USER specdec", "runs as specdec"),
    ("user", "coordinator", "USER 10001:10001\n", "", "runs as root"),
    ("healthcheck", "target", "specdec.edge.health", "true", "no HEALTHCHECK"),
    ("ports", "coordinator", "PORT=50050", "PORT=50051", "ENV PORT is 50051, not 50050"),
    ("ports", "draft", "EXPOSE 50052 9090", "EXPOSE 50052", "9090 is not exposed"),
    ("ports", "target", "HOST=0.0.0.0", "HOST=127.0.0.1", "ENV HOST is 127.0.0.1"),
    ("environment", "coordinator", "METRICS_PORT=9090", "METRIC_PORT=9090", "no setting METRIC_PORT"),
    ("dependencies", "target", "torch==2.13.0", "torch==2.12.0", "torch==2.12.0 is not what pyproject.toml pins"),
    ("dependencies", "coordinator", "[coordinator]", "[coordinator,lm]", "must not have torch"),
    ("dependencies", "draft", "[draft,target]", "[target]", "its own dependencies"),
    ("dependencies", "draft", "[draft,target]", "[draft,serving]", "no extra serving"),
    ("sources", "coordinator", "COPY coordinator coordinator", "COPY coordinators coordinator", "it is not there"),
    ("sources", "target", "COPY specdec specdec", "COPY specdec tests ./", ".dockerignore keeps it out"),
    ("sources", "draft", '["python", "-m", "draft_service"]', '["python", "-m", "draft"]', "does not run"),
    ("one_stage_for_tools", "target", "RUN useradd", "RUN apt-get update && useradd", "apt-get runs in the stage"),
]


@pytest.mark.parametrize(("check", "service", "old", "new", "words"), MISTAKES, ids=[m[-1] for m in MISTAKES])
def test_a_mistake_is_named(check: str, service: str, old: str, new: str, words: str) -> None:
    text = DOCKERFILES[service].read_text()
    assert old in text
    sentences = list(CHECKS[check](parse_dockerfile(service, text.replace(old, new))))
    assert any(words in sentence for sentence in sentences), sentences


def test_every_check_has_a_mistake_that_it_names() -> None:
    assert {check for check, *_ in MISTAKES} == set(CHECKS)


def test_all_images_share_one_base() -> None:
    assert len({base for service in DOCKERFILES for base in bases(read_dockerfile(service))}) == 1


def test_replicas_install_alike_so_that_they_share_a_layer() -> None:
    """Several hundred megabytes: drafters and verifiers often share a host."""
    drafts, targets = (read_dockerfile(service).stages[0] for service in ("draft", "target"))
    until = next(i for i, step in enumerate(drafts) if step.rest.startswith("protos"))
    assert drafts[:until] == targets[:until]


def plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def source(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def imported(module: str) -> set[str]:
    """Names from outside that this module needs, and those of ours that it imports, anywhere in them."""
    waiting, seen, outside = [module], set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        file = source(name)
        if file is None:  # `from module import name`
            name = name.rpartition(".")[0]
            file = source(name)
        if file is None or name in seen:
            continue
        seen.add(name)
        for each in imports(file.read_text()):
            ours = any(each == package or each.startswith(f"{package}.") for package in (*OURS, "specdec"))
            if ours:
                waiting.append(each)
            else:
                outside.add(each)
    return {name.split(".")[0] for name in outside} - sys.stdlib_module_names


@pytest.mark.parametrize("service", FOLDERS)
def test_an_image_installs_all_that_its_process_imports(service: str) -> None:
    """By name: what another package happens to bring may go with its next version."""
    given, found = {plain(name) for name in extra(service)}, packages_distributions()
    needed = imported(f"{FOLDERS[service]}.__main__")
    assert {"numpy", "grpc", "opentelemetry"} <= needed, "the walk lost its way"
    assert {name for name in needed if not given & {plain(one) for one in found[name]}} == set()
