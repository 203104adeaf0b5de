"""`python -m tests.deploy`: all that can be known of a deployment without a cluster. Prints what is wrong; exit code 1
if anything is."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.deploy.checks import CHECKS, OTHER, Facts
from tests.deploy.kustomize import K8S, ROOT, build_all
from tests.deploy.live import shown_by_processes
from tests.deploy.queries import of_dashboards, of_rules, recorded
from tests.deploy.scaling import adapter_rules
from tests.metrics import Series

ADAPTER = K8S / "components" / "hpa" / "prometheus-adapter.yaml"
RULES = ROOT / "observability" / "rules"
DASHBOARDS = ROOT / "observability" / "grafana" / "dashboards"


def gathered(series: Series) -> Facts:
    """All that is in the repository. Raises RuntimeError where nothing can build it."""
    asked = (*of_rules(RULES), *of_dashboards(DASHBOARDS))
    return Facts(tuple(build_all()), adapter_rules(ADAPTER), asked, recorded(RULES), series)


def main() -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        facts = gathered(shown_by_processes(Path(scratch)))
    found = {name: check(facts) for name, check in CHECKS.items()}
    found |= {name: list(check()) for name, check in OTHER.items()}
    wrong = sum(map(len, found.values()))
    for name, sentences in found.items():
        for sentence in sentences:
            print(f"[{name}] {sentence}")
    objects = sum(len(build.objects) for build in facts.builds)
    print(
        f"{len(found)} checks of {objects} objects in {len(facts.builds)} builds, {len(facts.series)} live series: "
        f"{wrong or 'nothing'} wrong ({time.monotonic() - begun:.1f} s)"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
