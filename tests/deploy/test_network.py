"""The network policies of an overlay allow only the connections that pods need. The tests check each pair of pods."""

from __future__ import annotations

from tests.deploy.manifests import Object, Rendered, selects

OUTSIDE = {"client": {"foqs-client": "true"}, "prometheus": {"app.kubernetes.io/name": "prometheus"}, "other": {}}
ALLOWED = {
    ("client", "foqs", 7707),
    ("foqs", "foqs", 7707),
    ("prometheus", "foqs", 9707),
    *((pod, "zookeeper", 2181) for pod in ("foqs", "foqs-shards", "foqs-report")),
    *(("zookeeper", "zookeeper", port) for port in (2888, 3888)),
    *((pod, "mysql", 3306) for pod in ("foqs", "foqs-shards", "foqs-report")),
}
"""(from, to, port)"""
DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def peers(rules: list[Object], pods: dict[str, dict[str, str]], side: str) -> set[tuple[str, int]]:
    """Return the pods and ports that `rules` allow on one side. A block of addresses counts as a pod called `block`."""
    found: set[tuple[str, int]] = set()
    for rule in rules:
        for peer in rule[side]:
            if "ipBlock" in peer:
                names = {"block"} if rule["ports"] != DNS else set()
            else:
                names = {name for name, labels in pods.items() if selects(peer["podSelector"], labels)}
                if "namespaceSelector" not in peer:
                    names -= OUTSIDE.keys()
            found |= {(name, port["port"]) for name in names for port in rule["ports"]}
    return found


def test_only_needed_connections_are_allowed(rendered: Rendered) -> None:
    inside = {pod.name: pod.labels for pod in rendered.pods.values()}
    comes: set[tuple[str, str, int]] = set()
    goes: set[tuple[str, str, int]] = set()
    guarded: dict[str, set[str]] = {"Ingress": set(), "Egress": set()}
    for policy in rendered.of("NetworkPolicy"):
        spec = policy["spec"]
        chosen = {name for name, labels in inside.items() if selects(spec["podSelector"], labels)}
        assert chosen, policy["metadata"]["name"]
        for kind in spec["policyTypes"]:
            guarded[kind] |= chosen
        for name in chosen:
            comes |= {(peer, name, port) for peer, port in peers(spec.get("ingress", []), inside | OUTSIDE, "from")}
            goes |= {(name, peer, port) for peer, port in peers(spec.get("egress", []), inside, "to")}
    assert guarded == {"Ingress": set(inside), "Egress": set(inside)}, "every pod has a policy for each direction"
    assert comes == {(source, target, port) for source, target, port in ALLOWED if target in inside}
    within = {(source, target, port) for source, target, port in comes if source in inside}
    blocks = {(pod, "block", port) for pod in inside for port in (2281, 3306)} if rendered.overlay == "prod" else set()
    assert goes == within | blocks


def test_names_are_looked_up(rendered: Rendered) -> None:
    (rule,) = rendered.one("NetworkPolicy", "foqs-dns")["spec"]["egress"]
    assert rule["ports"] == DNS
    service, cache = rule["to"]
    assert service["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    assert cache == {"ipBlock": {"cidr": "169.254.20.10/32"}}, "what NodeLocal DNSCache listens on"


def test_every_port_of_a_container_has_a_client(rendered: Rendered) -> None:
    for pod in rendered.pods.values():
        assert set(pod.ports.values()) == {port for _, target, port in ALLOWED if target == pod.name}
