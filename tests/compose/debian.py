"""Packages of the Debian host that this runs on, from the mirror that it uses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_POLICY = Path("/usr/sbin/policy-rc.d")


def mirror() -> str:
    """URL of the mirror that apt takes Debian itself from."""
    lines = _run(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages", "Origin: Debian"
    )
    found = [line.split()[0] for line in lines.splitlines() if line.endswith(" main")]
    if not found:
        raise OSError("apt knows no mirror of Debian")
    return found[0]


def codename() -> str:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return next(value for name, _, value in pairs if name == "VERSION_CODENAME")


def install(packages: Sequence[str]) -> None:
    """Without starting what they bring: an engine that starts by itself would change the host's packet filter."""
    if not packages:
        return
    _run("apt-get", "update")
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        _run("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    finally:
        if ours:
            _POLICY.unlink()


def unpack(package: str, release: str, folder: Path) -> Path:
    """The files of a package of another release, without installing it."""
    for part in ("lists/partial", "cache/archives/partial", package):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sources = folder / f"{release}.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {release} main\n")
    options = [
        *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-"),
        *("-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "download", package, cwd=folder / package)
    (archive,) = (folder / package).glob("*.deb")
    _run("dpkg-deb", "--extract", str(archive), str(folder / package))
    archive.unlink()
    return folder / package


def bootstrap(root: Path, packages: Sequence[str]) -> None:
    """A whole Debian of this host's release in a folder, as small as it gets, with these packages."""
    _run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", codename(), str(root), mirror())


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise OSError(f"{' '.join(command[:3])}: {' / '.join(lines)}")
    return done.stdout
