"""Stand-ins for the images that ours are made from, where no registry gives them: a small Debian with Python, pip and
Redis, under each of their names. It knows how this host reaches pip's index."""

from __future__ import annotations

import ast
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.compose.debian import bootstrap
from tests.compose.engine import Engine, EngineFailed
from tests.deploy.compose import pulled, read_compose
from tests.deploy.images import DOCKERFILES, bases, read_dockerfile

PACKAGES = ("ca-certificates", "python3", "python3-pip", "redis-server")
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
WHEELS_PORT = 18099  # written into the stand-ins, which are kept
REDIS_OWNER = (999, 1000)  # of /data in the image that this stands for


def base_images(engine: Engine, folder: Path) -> None:
    """Makes those that the engine does not have. Raises OSError, EngineFailed."""
    wanted = {*pulled(read_compose()), *(name for file in DOCKERFILES for name in bases(read_dockerfile(file)))}
    missing = [name for name in sorted(wanted) if not _there(engine, name)]
    if not missing:
        return
    archive = folder / "base.tar"
    if not archive.exists():
        _make(folder / "root", archive)
    for name in missing:
        engine.docker("import", str(archive), name, within=300.0)


def _there(engine: Engine, name: str) -> bool:
    try:
        engine.inspect("image", name)
    except EngineFailed:
        return False
    return True


def _make(root: Path, archive: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    bootstrap(root, PACKAGES)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    bundle = ssl.get_default_verify_paths().cafile or f"/{BUNDLE}"
    shutil.copyfile(bundle, root / BUNDLE)
    (root / "etc/pip.conf").write_text(_pip_conf())
    (root / "data").mkdir()
    shutil.chown(root / "data", *REDIS_OWNER)
    partly = archive.with_suffix(".part")
    subprocess.run(["tar", "--create", "--file", str(partly), "--directory", str(root), "."], check=True)
    partly.rename(archive)
    shutil.rmtree(root)


def _pip_conf() -> str:
    """This host's configuration of pip, as far as it means anything in a container."""
    settings = {"cert": f"/{BUNDLE}", "timeout": "120"}
    known = _pip_settings()
    if "index-url" in known:
        settings["index-url"] = re.sub(r"(?<=://)[^/@]*@", "", known["index-url"])  # it stays in the images
    if _wheel_folders():
        settings["find-links"] = f"http://127.0.0.1:{WHEELS_PORT}/"
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


@contextmanager
def local_wheels(port: int) -> Iterator[None]:
    """Serves, on loopback, the wheels of the folders that pip looks into on this host."""
    with tempfile.TemporaryDirectory(prefix="specdec-wheels-") as folder:
        for wheels in _wheel_folders():
            for wheel in wheels.glob("*.whl"):
                (Path(folder) / wheel.name).symlink_to(wheel)
        handler = partial(_Quiet, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _wheel_folders() -> list[Path]:
    return [path for word in _pip_settings().get("find-links", "").split() if (path := Path(word)).is_dir()]


def _pip_settings() -> dict[str, str]:
    """name -> value, of every place where pip is configured; the later ones win."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in pairs}
