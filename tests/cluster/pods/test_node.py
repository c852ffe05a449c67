"""The bed's node is a real one: what a pod does there, kubectl shows."""

from __future__ import annotations

import json
from typing import Any

from testbed.image import IMAGE
from testbed.kubectl import Kubectl
from testbed.node import CLAIM, Node


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": IMAGE, "command": ["bash", "-c", script], **spec}
    container |= {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
            "containers": [container],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": CLAIM}}],
        },
    }


def test_a_pod_gets_gpus_a_cache_and_the_interpreter(claimed: str, node: Node, kubectl: Kubectl) -> None:
    script = "id -u; /cache/python/bin/python -c 'import numpy; print(numpy.ones(3).sum())'; "
    script += "until [ -e /tmp/go ]; do sleep 0.1; done"
    gpus = {"limits": {"nvidia.com/gpu": 8}}
    kubectl("apply", "-n", claimed, "-f", "-", stdin=json.dumps(pod("one", script, resources=gpus)))
    kubectl("wait", "-n", claimed, "--for=condition=Ready", "pod/one", "--timeout=30s")
    kubectl("apply", "-n", claimed, "-f", "-", stdin=json.dumps(pod("other", script, resources=gpus)))
    kubectl("wait", "-n", claimed, "--for=condition=PodScheduled=false", "pod/other", "--timeout=30s")
    said = kubectl("get", "pod", "other", "-n", claimed, "-o", "jsonpath={.status.conditions[0].message}")
    assert "1 Insufficient nvidia.com/gpu" in said
    assert kubectl("exec", "-n", claimed, "one", "--", "hostname").strip() == "one"
    kubectl("delete", "pod", "other", "-n", claimed)
    kubectl("exec", "-n", claimed, "one", "--", "touch", "/tmp/go")
    kubectl("wait", "-n", claimed, "--for=jsonpath={.status.phase}=Succeeded", "pod/one", "--timeout=60s")
    assert kubectl("logs", "-n", claimed, "one").split() == ["1000", "3.0"]
