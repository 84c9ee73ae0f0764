"""A real Prometheus discovers a pod by a mock of the Kubernetes API, and scrapes a real sidecar."""

from __future__ import annotations

import contextlib
import re

import pytest
import yaml
from fake_kubernetes import FakeKubernetes
from harness import PROMISE_FACTOR, until
from manifests import DEPLOY, HELM, kustomize, run
from prometheus import PrometheusServer

NATIVE, PLAIN = "sidecar", "plain-container"
ENGINE = """
apiVersion: v1
kind: Pod
metadata: {name: vllm-0, namespace: serving, uid: "1", resourceVersion: "1", labels: {ullage.dev/enabled: "true"}}
spec:
  nodeName: node-7
  containers: [{name: vllm, image: vllm, ports: [{name: http, containerPort: 8000}]}]
"""
RUNNING = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
def cluster():
    """Serve pods; it is gone at the end of the test."""
    with contextlib.ExitStack() as stack:

        def serve(*pods):
            fake = FakeKubernetes([{**pod, "status": RUNNING} for pod in pods])
            stack.callback(fake.close)
            return fake.url

        yield serve


@pytest.fixture
def scraped(prometheus, tmp_path):
    """Run Prometheus with one scrape config; return how to ask for the labels of what it has."""
    with contextlib.ExitStack() as stack:

        def start(job):
            running = PrometheusServer(prometheus, tmp_path, [job])
            stack.callback(running.end)
            return lambda expression: [labels for labels, _ in running.query(expression)]

        yield start


def patched(component, tmp_path):
    """The pod of an engine with ullage."""
    (tmp_path / "pod.yaml").write_text(ENGINE)
    # kustomize knows no components outside of its own tree.
    (tmp_path / "component").symlink_to(DEPLOY / "kustomize" / component)
    (tmp_path / "kustomization.yaml").write_text("{resources: [pod.yaml], components: [component]}")
    (pod,) = kustomize("1.37", tmp_path)
    return pod


def scrape_config(api_server):
    """What prometheus-operator makes of the chart's PodMonitor: keep by labels, then by port; then its relabelings."""
    rendered = run(HELM["4.3"], "template", "ullage", DEPLOY / "helm/ullage")
    monitor = next(one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    keep = [
        {"source_labels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}"], "regex": value}
        for name, value in monitor["selector"]["matchLabels"].items()
    ]
    keep.append({"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"]})
    targets = {"namespace": "namespace", "pod_name": "pod", "pod_container_name": "container"}
    labels = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target} for source, target in targets.items()
    ]
    labels += [
        {"source_labels": one["sourceLabels"], "target_label": one["targetLabel"]} for one in endpoint["relabelings"]
    ]
    return {
        "job_name": "monitoring/ullage",
        "metrics_path": endpoint["path"],
        "sample_limit": monitor["sampleLimit"],
        "kubernetes_sd_configs": [{"role": "pod", "api_server": api_server}],
        "relabel_configs": [{**one, "action": "keep"} for one in keep] + labels,
    }


def listen_on(pod, port):
    """The sidecar under test has a port of its own: put it where the pod says which."""
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        for one in container.get("ports", []):
            if one["name"] == "ullage":
                one["containerPort"] = port


@pytest.mark.parametrize("component", [NATIVE, PLAIN])
def test_the_port_of_the_sidecar_is_found_and_scraped(component, sidecar, cluster, scraped, tmp_path):
    # given a pod with the sidecar, one that does not ask for it, and one that has the label but no such port
    running = sidecar()
    pod = patched(component, tmp_path)
    listen_on(pod, running.port)
    stranger = {**pod, "metadata": {**pod["metadata"], "name": "stranger", "uid": "2", "labels": {}}}
    bare = yaml.safe_load(ENGINE.replace("vllm-0", "bare").replace('"1"', '"3"'))

    # when Prometheus asks the API for pods
    query = scraped(scrape_config(cluster(pod, stranger, bare)))

    # then it scrapes the sidecar, and nothing else
    until(lambda: query("ullage_build_info"), 10 * PROMISE_FACTOR, "the first scrape")
    (up,) = query("up == 1")
    expected = {"namespace": "serving", "pod": "vllm-0", "container": "ullage", "node": "node-7"}
    assert {name: up.get(name) for name in expected} == expected
    assert query("up == 0") == []
