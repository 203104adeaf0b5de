"""A Docker engine to talk to: the user's own, if there is one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

NO_ENGINE = (
    "no Docker engine can be used here: {reason}. Start one, with its compose plugin (v2), and let this user talk to "
    "it; as root on Debian ARGS='--airgapped FOLDER' sets one up that needs no image registry"
)


class NoEngine(Exception):
    """A sentence: why there is none."""


class EngineFailed(Exception):
    """A command of the engine's ended with an error."""


@dataclass(frozen=True, slots=True)
class Engine:
    """environment: beyond ours, for `docker` to find it. overrides: compose files that this engine needs to build."""

    environment: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[Path, ...] = ()

    def docker(self, *words: str, environment: Mapping[str, str] | None = None, within: float = 120.0) -> str:
        """What it printed. environment: more of it. within: seconds. Raises EngineFailed."""
        whole = {**os.environ, **self.environment, **(environment or {})}
        command = ["docker", *words]
        try:
            done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=within, check=False)
        except FileNotFoundError:
            raise EngineFailed("there is no `docker` command") from None
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"`{' '.join(command)}` took more than {within:.0f} s") from None
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
            raise EngineFailed(f"`{' '.join(command)}` failed: {said}")
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        """kind: container, image, network."""
        found: list[dict[str, Any]] = json.loads(self.docker(kind, "inspect", name))
        return found[0]

    @property
    def gateway(self) -> str:
        """The address at which every container reaches this host."""
        (config, *_) = self.inspect("network", "bridge")["IPAM"]["Config"]
        # Older engines do not name it where nobody chose it.
        return str(config.get("Gateway") or next(ip_network(config["Subnet"]).hosts()))

    def check(self) -> None:
        """Raises NoEngine."""
        try:
            self.docker("version", "--format", "{{.Server.Version}}", within=20.0)
            self.docker("compose", "version", within=20.0)
        except EngineFailed as error:
            raise NoEngine(NO_ENGINE.format(reason=str(error).rstrip(".").splitlines()[-1])) from None
