"""Each object against the schema of its kind, unknown keys refused: the API server's own where there is one."""

from __future__ import annotations

import json
from functools import cache

import kubernetes_validate

from tests.deploy.crds import CRDS, strict
from tests.deploy.manifests import Manifests, Object, shown

VERSION = "1.30"  # of Kubernetes: the oldest that these manifests are for, the first with preStop.sleep


def schemas(manifests: Manifests) -> list[str]:
    return [f"{shown(obj)}: {sentence}" for obj in manifests.objects for sentence in _against_its_own(obj)]


def _against_its_own(obj: Object) -> list[str]:
    if obj["kind"] in CRDS:
        return strict(obj)
    return list(_of_kubernetes(json.dumps(obj)))


@cache
def _of_kubernetes(text: str) -> tuple[str, ...]:
    """Builds share most of their objects, and each schema is read anew."""
    obj = json.loads(text)
    try:
        kubernetes_validate.validate(obj, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(map(str, error.path)) or "the object"
        return (f"{where}: {error.message}: see the reference of Kubernetes {VERSION}",)
    except kubernetes_validate.SchemaNotFoundError:
        return (f"apiVersion {obj['apiVersion']}: nothing here knows this kind: add its schema to the checks",)
    return ()
