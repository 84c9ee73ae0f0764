"""The checks of manifests find what is planted."""

from __future__ import annotations

import copy

import pytest
import yaml
from manifests import is_guaranteed, lost, problems

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec:
      initContainers: [{name: ullage, image: ullage, restartPolicy: Always}]
      containers: [{name: vllm, image: vllm, args: [--port, "80"], env: [{name: A, value: b}]}]
"""
GROUP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    workerTemplate:
      spec:
        containers: [{name: vllm, image: vllm}]
"""
POD_MONITOR = """
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: ullage}
spec: {selector: {}, podMetricsEndpoints: [{port: ullage, interval: 30s}]}
"""
RULE = """
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: ullage}
spec: {groups: [{name: g, rules: [{alert: A, expr: up == 0, for: 1m}]}]}
"""
SOUND = {"deployment": DEPLOYMENT, "group": GROUP, "pod monitor": POD_MONITOR, "rule": RULE}


@pytest.mark.parametrize("manifest", SOUND.values(), ids=SOUND)
def test_a_sound_manifest_has_no_problem(manifest):
    assert problems(yaml.safe_load(manifest)) == []


@pytest.mark.parametrize(
    ("manifest", "right", "wrong"),
    [
        (DEPLOYMENT, "env:", "envs:"),
        (DEPLOYMENT, 'args: [--port, "80"]', "args: --port"),
        (DEPLOYMENT, "image: vllm,", ""),
        (DEPLOYMENT, "restartPolicy: Always", "restartPolicy: Alway"),
        (DEPLOYMENT, "restartPolicy: Always", "restartPolicy: Never"),
        (DEPLOYMENT, "image: vllm,", "image: vllm, restartPolicy: Always,"),
        (GROUP, "image: vllm", "image: vllm, volumeMount: []"),
        (POD_MONITOR, "podMetricsEndpoints", "podMetricEndpoints"),
        (POD_MONITOR, "port: ullage", "prot: ullage"),
        (POD_MONITOR, "interval: 30s", "interval: often"),
        (RULE, "expr:", "exprr:"),
    ],
)
def test_a_planted_error_is_a_problem(manifest, right, wrong):
    assert right in manifest
    assert len(problems(yaml.safe_load(manifest.replace(right, wrong, 1)))) == 1


def test_a_native_sidecar_is_a_problem_before_it_was_there():
    assert problems(yaml.safe_load(DEPLOYMENT), "1.27")
    assert not problems(yaml.safe_load(DEPLOYMENT), "1.29")


def test_additions_are_no_loss():
    before = yaml.safe_load(DEPLOYMENT)
    after = copy.deepcopy(before)
    after["spec"]["template"]["spec"]["containers"][0]["env"].insert(0, {"name": "B", "value": "c"})
    after["spec"]["template"]["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    assert lost(before, after) == []


@pytest.mark.parametrize(
    ("drop", "where"),
    [
        (lambda pod: pod["containers"][0].pop("image"), "containers[0](vllm).image"),
        (lambda pod: pod["containers"][0]["args"].pop(), "containers[0](vllm).args[1]"),
        (lambda pod: pod["containers"][0]["env"].clear(), "containers[0](vllm).env[0]"),
        (lambda pod: pod["containers"][0]["env"][0].update(value="c"), "containers[0](vllm).env[0](A).value"),
        (lambda pod: pod.update(initContainers=[]), "initContainers[0]"),
        (lambda pod: pod.update(containers=[]), "containers[0]"),
    ],
)
def test_what_a_patch_took_away_is_lost(drop, where):
    before = yaml.safe_load(DEPLOYMENT)
    after = copy.deepcopy(before)
    drop(after["spec"]["template"]["spec"])
    assert lost(before, after) == [f"$.spec.template.spec.{where}"]


def test_one_of_two_equal_elements_is_lost():
    assert lost({"args": ["-v", "-v"]}, {"args": ["-v"]}) == ["$.args[1]"]


def test_a_container_without_limits_is_not_guaranteed():
    limits = {"limits": {"cpu": 1, "memory": "1Gi"}}
    assert is_guaranteed({"spec": {"containers": [{"resources": limits}]}})
    assert not is_guaranteed({"spec": {"containers": [{"resources": limits}, {}]}})
    assert not is_guaranteed({"spec": {"containers": [{"resources": {**limits, "requests": {"cpu": 1}}}]}})
