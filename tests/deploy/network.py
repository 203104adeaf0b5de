"""NetworkPolicies that allow the arrows of the architecture, and no other."""

from __future__ import annotations

from collections.abc import Iterator

from tests.deploy.manifests import PART, PROCESSES, Manifests, Object, labels, matches

Arrow = tuple[str, str, object]  # from whom, to whom, on which port

CLIENTS, OBSERVABILITY, DNS, ANYONE, ANY_PORT = "clients", "observability", "dns", "anyone", "any port"
ARROWS: frozenset[Arrow] = frozenset(
    [
        (CLIENTS, "coordinator", 50050),
        ("coordinator", "draft", 50052),
        ("coordinator", "target", 50053),
        ("coordinator", "redis", 6379),
        ("target", "redis-kv", 6379),
        *((OBSERVABILITY, process, 9090) for process in PROCESSES),
        *((process, OBSERVABILITY, 4317) for process in PROCESSES),
        *((process, DNS, 53) for process in PROCESSES),
    ]
)


def arrows(manifests: Manifests) -> list[str]:
    """Both ends of an arrow must allow it: whoever sends by Egress, whoever receives by Ingress."""
    pods = {labels(w["spec"]["template"]).get(PART, ""): labels(w["spec"]["template"]) for w in manifests.workloads}
    found = []
    for name, given in pods.items():
        incoming = {(peer, name, port) for peer, port in _allowed(manifests, given, "Ingress")}
        outgoing = {(name, peer, port) for peer, port in _allowed(manifests, given, "Egress")}
        for kind, allowed, end in (("Ingress", incoming, 1), ("Egress", outgoing, 0)):
            wanted = {arrow for arrow in ARROWS if arrow[end] == name}
            for arrow in sorted(allowed ^ wanted, key=str):
                if arrow in wanted:
                    found.append(f"NetworkPolicy: {kind} does not allow {_drawn(arrow)}: add it")
                else:
                    remedy = "the architecture has no such arrow: take it out"
                    found.append(f"NetworkPolicy: {kind} allows {_drawn(arrow)}: {remedy}")
    return found


def _allowed(manifests: Manifests, given: object, kind: str) -> Iterator[tuple[str, object]]:
    """Peers and ports that policies leave to pods with these labels; without a policy, everything."""
    assert isinstance(given, dict)
    chosen = [
        policy
        for policy in manifests.of("NetworkPolicy")
        if kind in policy["spec"]["policyTypes"] and matches(policy["spec"]["podSelector"], given)
    ]
    if not chosen:
        yield ANYONE, ANY_PORT
    for policy in chosen:
        for rule in policy["spec"].get(kind.lower()) or []:
            for peer in rule.get("from" if kind == "Ingress" else "to") or [{}]:
                for port in rule.get("ports") or [{}]:
                    yield _name(peer), port.get("port", ANY_PORT)


def _name(peer: Object) -> str:
    """Who a peer is; whoever it is not is spelled out."""
    pods = (peer.get("podSelector") or {}).get("matchLabels") or {}
    namespace = ((peer.get("namespaceSelector") or {}).get("matchLabels") or {}).get("kubernetes.io/metadata.name")
    if peer.keys() == {"podSelector"} and pods.keys() == {PART}:
        return str(pods[PART])
    if peer.keys() == {"namespaceSelector"} and namespace == "observability":
        return OBSERVABILITY
    if namespace == "kube-system" and pods == {"k8s-app": "kube-dns"}:
        return DNS
    if peer.get("namespaceSelector") == {} and pods == {"specdec-client": "true"}:
        return CLIENTS
    return str(peer) if peer else ANYONE


def _drawn(arrow: Arrow) -> str:
    return f"{arrow[0]} -> {arrow[1]}:{arrow[2]}"
