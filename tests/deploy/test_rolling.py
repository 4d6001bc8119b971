"""Updates, scaling and the emptying of nodes take one host at a time, and give it the time to hand its shards over."""

from __future__ import annotations

from foqs.config.load import Config
from foqs.server import cluster_node
from tests.deploy.manifests import Rendered


def test_a_pod_has_the_time_that_its_host_may_take(rendered: Rendered, settings: Config) -> None:
    host = rendered.host.container("host")
    command, seconds = host["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    takes_s = int(seconds) + 2 * settings.server.grace_ms / 1000 + cluster_node._CLOSE_S
    assert rendered.host.spec["terminationGracePeriodSeconds"] >= takes_s + 5


def test_updates_stop_one_host_at_a_time(rendered: Rendered) -> None:
    spec = rendered.one("StatefulSet", "foqs")["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}, "its maxUnavailable is 1, and its partition 0"
    assert spec["minReadySeconds"] > 0


def test_nodes_are_emptied_of_one_host_at_a_time(rendered: Rendered) -> None:
    budget = rendered.one("PodDisruptionBudget", "foqs")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


def test_a_host_that_is_not_ready_does_not_keep_its_node(rendered: Rendered) -> None:
    for budget in rendered.of("PodDisruptionBudget"):
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", budget["metadata"]["name"]


def test_there_is_always_another_host_to_hand_over_to(rendered: Rendered) -> None:
    spec = rendered.one("StatefulSet", "foqs")["spec"]
    scalers = rendered.of("HorizontalPodAutoscaler")
    assert ("replicas" in spec) != bool(scalers), "or every `apply` would undo what the autoscaler did"
    assert (scalers[0]["spec"]["minReplicas"] if scalers else spec["replicas"]) >= 2


def test_the_autoscaler_takes_one_host_away_at_a_time(rendered: Rendered) -> None:
    """Pods of a StatefulSet that starts them in parallel are also stopped in parallel when it is made smaller."""
    spec = rendered.one("StatefulSet", "foqs")["spec"]
    for scaler in rendered.of("HorizontalPodAutoscaler"):
        (policy,) = scaler["spec"]["behavior"]["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
        assert policy["periodSeconds"] > spec["template"]["spec"]["terminationGracePeriodSeconds"]
        # Hosts that were added within the period may go in one step.
        assert scaler["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] >= policy["periodSeconds"]


def test_a_stopping_host_keeps_its_name_but_leaves_the_service(rendered: Rendered) -> None:
    assert rendered.one("Service", "foqs-hosts")["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in rendered.one("Service", "foqs")["spec"]


def test_only_a_host_that_hangs_is_killed(rendered: Rendered) -> None:
    """One that waits for ZooKeeper or for a database is not ready, and alive."""
    host = rendered.host.container("host")
    assert host["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert host["livenessProbe"]["httpGet"]["path"] == host["startupProbe"]["httpGet"]["path"] == "/healthz"
    alive = host["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 30
