"""Values that are the chart's own, of what stands around the pod: metrics, network, disruptions. What each does."""

from __future__ import annotations

import json
from typing import Any

import yaml

from testbed.helm import CHART, Object, of_kind
from unit.chart.rendering import LOGIN, PLATFORM, Row, container, known, merged, nested, one

PEER = {"namespaceSelector": {"matchLabels": {"team": "watch"}}}
BOARD = "speedrun-operator-dashboard"
METRICS = {"metrics": {"enabled": True}}
GUARDED = {"networkPolicy": {"enabled": True}, "login": LOGIN, "platform": PLATFORM}


def egress(objects: list[Object], number: int) -> Any:
    """0: DNS, 1: the API server, 2: the login, 3: the Platform API."""
    return one(objects, "NetworkPolicy")["spec"]["egress"][number]


def ports(rule: Any) -> list[int]:
    return sorted({each["port"] for each in rule["ports"]})


def labels(objects: list[Object], kind: str, name: str | None = None) -> dict[str, str]:
    return dict(one(objects, kind, name)["metadata"]["labels"])


ROWS: list[Row] = [
    ("metrics.enabled", True, {}, lambda o: one(o, "Service", "speedrun-operator-metrics")),
    (
        "metrics.enabled",
        False,
        {"metrics": {name: {"enabled": True} for name in ("serviceMonitor", "alerts")}},
        lambda o: not of_kind(o, "Service", "ServiceMonitor", "PrometheusRule") and "metrics" not in known(o),
    ),
    (
        "metrics.port",
        9191,
        METRICS,
        lambda o: (
            (
                one(o, "Service")["spec"]["ports"][0]["port"],
                container(o)["ports"][1]["containerPort"],
                known(o)["metrics"]["address"],
            )
            == (9191, 9191, "0.0.0.0:9191")
        ),
    ),
    ("metrics.service.labels", {"a": "00123"}, METRICS, lambda o: labels(o, "Service")["a"] == "00123"),
    (
        "metrics.service.annotations",
        {"a": "1000000"},
        METRICS,
        lambda o: one(o, "Service")["metadata"]["annotations"] == {"a": "1000000"},
    ),
    ("metrics.serviceMonitor.enabled", True, METRICS, lambda o: one(o, "ServiceMonitor")),
    ("metrics.serviceMonitor.enabled", False, METRICS, lambda o: not of_kind(o, "ServiceMonitor")),
    (
        "metrics.serviceMonitor.interval",
        "1m",
        nested("metrics.serviceMonitor.enabled", True),
        lambda o: one(o, "ServiceMonitor")["spec"]["endpoints"][0]["interval"] == "1m",
    ),
    (
        "metrics.serviceMonitor.labels",
        {"release": "prometheus"},
        nested("metrics.serviceMonitor.enabled", True),
        lambda o: labels(o, "ServiceMonitor")["release"] == "prometheus",
    ),
    (
        "metrics.alerts.enabled",
        True,
        METRICS,
        lambda o: one(o, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text()),
    ),
    ("metrics.alerts.enabled", False, METRICS, lambda o: not of_kind(o, "PrometheusRule")),
    (
        "metrics.alerts.labels",
        {"release": "00123"},
        nested("metrics.alerts.enabled", True),
        lambda o: labels(o, "PrometheusRule")["release"] == "00123",
    ),
    ("metrics.dashboard.enabled", False, METRICS, lambda o: len(of_kind(o, "ConfigMap")) == 1),
    (
        "metrics.dashboard.enabled",
        True,
        METRICS,
        lambda o: (
            json.loads(one(o, "ConfigMap", BOARD)["data"]["speedruns.json"])
            == json.loads((CHART / "files" / "dashboard.json").read_text())
        ),
    ),
    (
        "metrics.dashboard.labels",
        {"a": "00123"},
        nested("metrics.dashboard.enabled", True),
        lambda o: labels(o, "ConfigMap", BOARD).items() >= {"a": "00123", "grafana_dashboard": "1"}.items(),
    ),
    (
        "metrics.dashboard.annotations",
        {"grafana_folder": "00123"},
        nested("metrics.dashboard.enabled", True),
        lambda o: one(o, "ConfigMap", BOARD)["metadata"]["annotations"] == {"grafana_folder": "00123"},
    ),
    ("networkPolicy.enabled", False, {}, lambda o: not of_kind(o, "NetworkPolicy")),
    ("networkPolicy.enabled", True, {}, lambda o: one(o, "NetworkPolicy")["spec"]["ingress"] == []),
    (
        "networkPolicy.apiServer.cidrs",
        ["10.0.0.1/32"],
        GUARDED,
        lambda o: egress(o, 1)["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    ),
    ("networkPolicy.apiServer.ports", [7443], GUARDED, lambda o: ports(egress(o, 1)) == [7443]),
    ("networkPolicy.dns.ports", [5353], GUARDED, lambda o: ports(egress(o, 0)) == [5353]),
    (
        "networkPolicy.login.cidrs",
        ["fd00::/8"],
        GUARDED,
        lambda o: egress(o, 2)["to"] == [{"ipBlock": {"cidr": "fd00::/8"}}],
    ),
    (
        "networkPolicy.login.namespaces",
        ["00123"],
        GUARDED,
        lambda o: (
            egress(o, 2)["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "00123"}}}]
        ),
    ),
    ("networkPolicy.login.ports", [2222], GUARDED, lambda o: ports(egress(o, 2)) == [2222]),
    (
        "networkPolicy.platform.cidrs",
        ["192.0.2.0/24"],
        GUARDED,
        lambda o: egress(o, 3)["to"] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}] and ports(egress(o, 3)) == [443],
    ),
    (
        "networkPolicy.metricsFrom",
        [PEER],
        merged(GUARDED, METRICS),
        lambda o: (
            one(o, "NetworkPolicy")["spec"]["ingress"]
            == [{"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [PEER]}]
        ),
    ),
    ("podDisruptionBudget.enabled", False, {}, lambda o: not of_kind(o, "PodDisruptionBudget")),
    (
        "podDisruptionBudget.enabled",
        True,
        {},
        lambda o: one(o, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1,
    ),
    (
        "podDisruptionBudget.maxUnavailable",
        0,
        nested("podDisruptionBudget.enabled", True),
        lambda o: one(o, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 0,
    ),
]
