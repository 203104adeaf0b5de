"""An engine of our own on a Debian host that reaches Debian's packages and pip's index, but no image registry. Its
images' bases are made from Debian's packages, under the names that the Dockerfiles and the compose file give, so that
those need no change.

    sudo make compose-e2e ARGS="--airgapped /var/tmp/specdec-engine"

The folder keeps the engine's data and the bases for the next run. Everything else is left as found: the engine is
stopped, the host's packet filter and links are put back. Packages that were installed stay."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compose.base_images import WHEELS_PORT, base_images, local_wheels
from tests.compose.debian import install, unpack
from tests.compose.engine import Engine, EngineFailed, NoEngine
from tests.compose.host_network import left_as_found
from tests.compose.waiting import until
from tests.deploy.compose import built, read_compose

PROGRAMS = {
    "dockerd": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
}
PLUGINS_RELEASE = "trixie"  # the first with compose v2
PLUGINS = {"docker-compose": "docker-compose", "docker-buildx": "docker-buildx"}
STARTS_WITHIN = 60.0
STOPS_WITHIN = 60.0


@contextmanager
def airgapped_engine(folder: Path) -> Iterator[Engine]:
    """Raises NoEngine where it cannot be."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoEngine("--airgapped needs root on a Debian host: it installs packages and starts a Docker engine")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        install([package for program, package in PROGRAMS.items() if shutil.which(program) is None])
        plugins = _plugins(folder / "docker-config")
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEngine(f"Debian's packages cannot be had: {error}") from None
    with ExitStack() as stack:
        stack.enter_context(left_as_found())
        socket = stack.enter_context(_dockerd(folder))
        environment = {"DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(plugins)}
        engine = Engine(environment, (_override(folder),))
        stack.enter_context(local_wheels(WHEELS_PORT))
        base_images(engine, folder / "base")
        yield engine


def _plugins(config: Path) -> Path:
    """A configuration folder of `docker` that has compose and buildx."""
    folder = config / "cli-plugins"
    if not all((folder / name).exists() for name in PLUGINS):
        folder.mkdir(parents=True, exist_ok=True)
        for name, package in PLUGINS.items():
            root = unpack(package, PLUGINS_RELEASE, config / "unpacked")
            (found,) = root.rglob(f"cli-plugins/{name}")
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(found)
    return config


@contextmanager
def _dockerd(folder: Path) -> Iterator[Path]:
    """The socket of an engine that runs meanwhile."""
    run = Path("/run/specdec-engine")  # short: a socket's path is limited
    run.mkdir(exist_ok=True)
    socket = run / "docker.sock"
    command = [
        "dockerd",
        *("--host", f"unix://{socket}", "--data-root", str(folder / "data"), "--exec-root", str(run / "exec")),
        *("--pidfile", str(run / "docker.pid")),
    ]
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: _answers(process, socket, folder), "the engine's start", STARTS_WITHIN)
        yield socket
    finally:
        process.terminate()
        process.wait(STOPS_WITHIN)
        shutil.rmtree(run, ignore_errors=True)


def _answers(process: subprocess.Popen[bytes], socket: Path, folder: Path) -> bool:
    if process.poll() is not None:
        lines = (folder / "dockerd.log").read_text(errors="replace").splitlines()[-5:]
        raise NoEngine(f"dockerd does not run on this {platform.system()} {platform.release()}: {' / '.join(lines)}")
    try:
        Engine({"DOCKER_HOST": f"unix://{socket}"}).docker("version", within=10.0)
    except EngineFailed:
        return False
    return True


def _override(folder: Path) -> Path:
    """A compose file: builds reach what the host reaches, and on its loopback its wheels."""
    services = "".join(f"  {name}:\n    build:\n      network: host\n" for name in built(read_compose()))
    file = folder / "override.yml"
    file.write_text(f"services:\n{services}")
    return file
