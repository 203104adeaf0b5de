"""The stack of docker-compose.yml under a name of its own, so that another one on this host is not touched."""

from __future__ import annotations

from collections.abc import Mapping

from tests.compose.engine import Engine
from tests.deploy.compose import FILE

PROJECT = "specdec-e2e"
_READ = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9090/metrics').read().decode())"


class Stack:
    def __init__(self, engine: Engine, port: int, environment: Mapping[str, str]) -> None:
        """port: of this host, for the coordinator. environment: for what the compose file leaves open."""
        self.engine = engine
        self.address = f"127.0.0.1:{port}"
        self._environment = {"SPECDEC_PORT": str(port), **environment}
        self._scales = {"draft": 1, "target": 1}

    def compose(self, *words: str, within: float = 120.0) -> str:
        files = (FILE, *self.engine.overrides)
        options = (word for file in files for word in ("--file", str(file)))
        return self.engine.docker(
            *("compose", "--project-name", PROJECT, *options, *words), environment=self._environment, within=within
        )

    def build(self) -> None:
        self.compose("build", within=3600.0)

    def up(self, **scales: int) -> None:
        """Starts what does not run, as many of each as asked for last; returns when compose has started all of it."""
        self._scales |= scales
        words = [word for name, count in self._scales.items() for word in ("--scale", f"{name}={count}")]
        self.compose("up", "--detach", "--no-build", "--no-recreate", *words, within=900.0)

    def down(self) -> None:
        """With its volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "60", within=300.0)

    def containers(self, service: str) -> list[str]:
        """Ids of those that run."""
        return self.compose("ps", "--quiet", "--status", "running", service).split()

    def metrics(self, container: str) -> str:
        return self.engine.docker("exec", container, "python", "-c", _READ)

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40")
