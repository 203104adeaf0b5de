"""Every check there is, by name. Each is a pure function of what was built, and answers with sentences: the object, the
field, its value and what to write. No sentence: all is well. A new check is a function and an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.deploy import compose, images, lifecycle, network, probes, queries, scaling, security, settings, wiring
from tests.deploy.manifests import Manifests
from tests.deploy.queries import Query
from tests.deploy.schemas import schemas
from tests.metrics import Series


@dataclass(frozen=True, slots=True)
class Facts:
    """builds: what each kustomization builds to. adapter: the PromQL of each external metric. queries: of rules and
    dashboards. recorded: series that rules make. series: what processes show."""

    builds: tuple[Manifests, ...]
    adapter: Mapping[str, str]
    queries: tuple[Query, ...]
    recorded: frozenset[str]
    series: Series

    def build(self, name: str) -> Manifests:
        return next(build for build in self.builds if build.name == name)


Check = Callable[[Facts], list[str]]


def each(check: Callable[[Manifests], list[str]]) -> Check:
    """A check of one build, on all of them."""
    return lambda facts: [f"{build.name}: {sentence}" for build in facts.builds for sentence in check(build)]


def external_metrics(facts: Facts) -> list[str]:
    """Each metric of a HorizontalPodAutoscaler is one that prometheus-adapter is told of, by KEDA's own query."""
    wanted = {
        f"specdec_{trigger['name'].replace('-', '_')}": trigger["metadata"]["query"]
        for scaler in facts.build("overlays/keda").of("ScaledObject")
        for trigger in scaler["spec"]["triggers"]
    }
    scalers = facts.build("overlays/hpa").of("HorizontalPodAutoscaler")
    named = [signal for scaler in scalers for signal in scaling.read_scaler(scaler).signals]
    return [
        f"prometheus-adapter.yaml: {name}: metricsQuery is {facts.adapter.get(name)}: write KEDA's: {wanted.get(name)}"
        for name in sorted({*wanted, *named})
        if name not in wanted or facts.adapter.get(name) != wanted[name]
    ]


def metrics(facts: Facts) -> list[str]:
    """What scalers, rules and dashboards ask for exists."""
    asked = [query for build in facts.builds for query in queries.of_scalers(build)]
    asked += [Query(f"prometheus-adapter.yaml: {name}: metricsQuery", expr) for name, expr in facts.adapter.items()]
    return queries.unknown(dict.fromkeys([*asked, *facts.queries]), facts.series, facts.recorded)


def _of_compose(check: Callable[[compose.Compose], Iterable[str]]) -> Iterable[str]:
    return check(compose.read_compose())


def _of_image(check: Callable[[images.Dockerfile], Iterable[str]], service: str) -> Iterable[str]:
    return check(images.read_dockerfile(service))


CHECKS: Mapping[str, Check] = {
    "schemas": each(schemas),
    "settings": each(settings.names),
    "values": each(settings.values),
    "references": each(settings.references),
    "stores": each(settings.stores),
    "service ports": each(wiring.service_ports),
    "selectors": each(wiring.selectors),
    "listening": each(wiring.listening),
    "addresses": each(wiring.addresses),
    "probes present": each(probes.present),
    "probes": each(probes.questions),
    "probe patience": each(probes.patience),
    "grace": each(lifecycle.grace),
    "disruption": each(lifecycle.disruption),
    "rollout": each(lifecycle.rollout),
    "images": each(security.images),
    "contexts": each(security.contexts),
    "resources": each(security.resources),
    "arrows": each(network.arrows),
    "one owner": each(scaling.one_owner),
    "pace": each(scaling.pace),
    "triggers": each(scaling.triggers),
    "agreement": lambda facts: scaling.agreement(facts.build("overlays/keda"), facts.build("overlays/hpa")),
    "external metrics": external_metrics,
    "metrics": metrics,
}
# Of what is no manifest; their mistakes are seeded beside them (test_compose.py, test_images.py).
OTHER: Mapping[str, Callable[[], Iterable[str]]] = {
    **{f"compose, {name}": partial(_of_compose, check) for name, check in compose.CHECKS.items()},
    **{
        f"image of {service}, {name}": partial(_of_image, check, service)
        for service in images.FOLDERS
        for name, check in images.CHECKS.items()
    },
}
