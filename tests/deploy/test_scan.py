"""trivy finds nothing of severity high in what we add to a pod, or to a cluster. No exception is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from manifests import DEPLOY, HELM, kustomize, run

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsGroup": 20000,
    "runAsNonRoot": True,
    "runAsUser": 20000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# An engine without a finding of its own.
ENGINE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "vllm", "namespace": "serving", "labels": {"ullage.dev/enabled": "true"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "vllm",
                "image": "vllm/vllm-openai:v0.32.0",
                "securityContext": RESTRICTED,
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
    },
}


@pytest.fixture
def findings(tmp_path):
    """Have trivy look at manifests; return what is high or critical, as identifiers of its rules."""

    def scan(manifests):
        (tmp_path / "scanned").mkdir()
        (tmp_path / "scanned/manifests.yaml").write_text(yaml.safe_dump_all(manifests))
        offline = {"TRIVY_SKIP_VERSION_CHECK": "true", "TRIVY_DISABLE_TELEMETRY": "true"}
        done = subprocess.run(
            [
                Path(sys.executable).with_name("trivy"),
                *("config", "--quiet", "--skip-check-update", "--severity", "HIGH,CRITICAL", "--format", "json"),
                *("--cache-dir", tmp_path / "cache", tmp_path / "scanned"),
            ],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **offline},
        )
        results = json.loads(done.stdout)["Results"]
        assert sum(one["MisconfSummary"]["Successes"] for one in results) >= 10, "it looked at nothing"
        return {found["ID"] for one in results for found in one.get("Misconfigurations", [])}

    return scan


@pytest.mark.parametrize("component", ["sidecar", "plain-container"])
def test_what_we_add_to_a_pod_has_no_high_finding(component, findings, tmp_path):
    shutil.copytree(DEPLOY / "kustomize" / component, tmp_path / "overlay/component")
    (tmp_path / "overlay/pod.yaml").write_text(yaml.safe_dump(ENGINE))
    (tmp_path / "overlay/kustomization.yaml").write_text("{resources: [pod.yaml], components: [component]}")
    assert findings(kustomize("1.37", tmp_path / "overlay")) == set()


def test_what_we_add_to_a_cluster_has_no_high_finding(findings):
    output = run(HELM["4.3"], "template", "ullage", DEPLOY / "helm/ullage", "--set", "networkPolicy.enabled=true")
    assert findings([one for one in yaml.safe_load_all(output) if one]) == set()


def test_a_writable_root_and_a_privileged_container_are_found(findings):
    (engine,) = ENGINE["spec"]["containers"]
    engine = {**engine, "securityContext": {**RESTRICTED, "readOnlyRootFilesystem": False, "privileged": True}}
    assert findings([{**ENGINE, "spec": {**ENGINE["spec"], "containers": [engine]}}]) >= {"KSV-0014", "KSV-0017"}
