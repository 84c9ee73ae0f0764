"""The kustomize components: what is patched has ullage, and all that it had before."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import yaml
from manifests import DEPLOY, KUBECTL, KUBERNETES, is_guaranteed, kustomize, lost, problems, templates

from ullage import __version__

FRAGMENT = yaml.safe_load((DEPLOY / "fragment.yaml").read_text())
ENGINE_OURS = {key: FRAGMENT["spec"]["containers"][0][key] for key in ("env", "volumeMounts")}
BOTH = {"name": "PYTHONPATH", "value": "/opt/ullage:/app"}
ENABLED = {"ullage.dev/enabled": "true"}
LABELS = {"app": "vllm", "team": "search"}
# A pod that uses what pods use: each of these must come through.
ENGINE = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.32.0",
    "command": ["vllm", "serve"],
    "args": ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--port", "8000"],
    "env": [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
    ],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
    "resources": {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
    },
    "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
    "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 120},
    "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    "volumeMounts": [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "models", "mountPath": "/models", "subPath": "llama", "readOnly": True},
    ],
}
POD = {
    "initContainers": [
        {
            "name": "download",
            "image": "busybox:1.36",
            "command": ["true"],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        }
    ],
    "containers": [
        ENGINE,
        {"name": "proxy", "image": "envoy:v1.30", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
    ],
    "volumes": [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
    ],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "nodeSelector": {"gpu": "h200"},
    "terminationGracePeriodSeconds": 120,
    "securityContext": {"runAsUser": 2000, "runAsGroup": 2000},
    "serviceAccountName": "vllm",
}
TEMPLATE = {"metadata": {"labels": LABELS, "annotations": {"note": "kept"}}, "spec": POD}
SELECTOR = {"selector": {"matchLabels": LABELS}}
SPECS = {
    "Deployment": {"replicas": 3, "strategy": {"type": "Recreate"}, **SELECTOR, "template": TEMPLATE},
    "StatefulSet": {"serviceName": "vllm", "replicas": 2, **SELECTOR, "template": TEMPLATE},
    "DaemonSet": {"updateStrategy": {"type": "OnDelete"}, **SELECTOR, "template": TEMPLATE},
    "ReplicaSet": {"replicas": 2, **SELECTOR, "template": TEMPLATE},
    "Job": {"backoffLimit": 0, "template": {**TEMPLATE, "spec": {**POD, "restartPolicy": "Never"}}},
    "Pod": POD,
}
VERSIONS = {"Job": "batch/v1", "Pod": "v1"}
GROUP_POD = {
    "containers": [{**ENGINE, "name": "vllm-leader"}],
    "volumes": POD["volumes"],
    "tolerations": POD["tolerations"],
}
OVERLAY = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["manifests.yaml"]}


def manifest(kind, labels=ENABLED, spec=None):
    """A workload of a kind."""
    metadata = {"name": "vllm", "namespace": "serving", "labels": {**LABELS, **labels}, "annotations": {"a": "b"}}
    return {
        "apiVersion": VERSIONS.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": metadata,
        "spec": spec or SPECS[kind],
    }


def leader_worker_set(**templates):
    """A LeaderWorkerSet."""
    template = {"size": 2, "restartPolicy": "RecreateGroupOnPodRestart", **templates}
    metadata = {"name": "vllm", "labels": ENABLED}
    spec = {"replicas": 2, "leaderWorkerTemplate": template}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}


@pytest.fixture
def overlay(tmp_path):
    """Write a kustomization that uses components for manifests; return its directory."""
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "kustomize")

    def write(manifests, *components, **more):
        directory = tmp_path / "overlay"
        directory.mkdir(exist_ok=True)
        used = [f"../kustomize/{component}" for component in components]
        (directory / "manifests.yaml").write_text(yaml.safe_dump_all(manifests))
        (directory / "kustomization.yaml").write_text(yaml.safe_dump({**OVERLAY, "components": used, **more}))
        return directory

    return write


def test_every_form_is_what_the_fragment_makes_of_it():
    done = subprocess.run([sys.executable, DEPLOY / "build.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"differs, run deploy/build.py: {done.stdout}{done.stderr}"


def test_the_fragment_keeps_its_promises():
    install, sidecar = FRAGMENT["spec"]["initContainers"]
    (engine,) = FRAGMENT["spec"]["containers"]
    containers = (install, sidecar, engine)
    assert {(c["name"], m["name"]): m.get("readOnly", False) for c in containers for m in c["volumeMounts"]} == {
        ("ullage-install-hook", "ullage-hook"): False,
        ("ullage", "ullage"): True,
        ("vllm", "ullage-hook"): True,
        ("vllm", "ullage"): False,
    }
    assert "readinessProbe" not in sidecar
    assert "startupProbe" not in sidecar
    probe = sidecar["livenessProbe"]
    assert probe["httpGet"]["path"] == "/livez"
    assert 90 <= probe["periodSeconds"] * probe["failureThreshold"] <= 180, "neither a slow node nor a hung sidecar"
    assert "securityContext" not in FRAGMENT["spec"], "the pod's own, fsGroup in it, is left alone"
    assert install["image"] == sidecar["image"] == f"ullage:{__version__}"


@pytest.mark.parametrize("kubectl", KUBECTL)
@pytest.mark.parametrize("kind", SPECS)
def test_each_kind_has_ullage_and_all_that_it_had(kind, kubectl, overlay):
    before = manifest(kind)

    (after,) = kustomize(kubectl, overlay([before], "sidecar"))

    assert lost(before, after) == []
    (template,) = templates(after)
    assert lost(FRAGMENT, template) == []
    assert is_guaranteed(template)
    assert {version: problems(after, version) for version in KUBERNETES} == {version: [] for version in KUBERNETES}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod"])
def test_before_native_sidecars_it_is_a_container_like_others(kind, overlay):
    before = manifest(kind)

    (after,) = kustomize("1.31", overlay([before], "plain-container"))

    assert lost(before, after) == []
    (pod,) = templates(after)
    names = [container["name"] for container in pod["spec"]["containers"]]
    assert sorted(names) == ["proxy", "ullage", "vllm"]
    assert names[0] == "vllm", "what kubectl logs shows without being told"
    assert [problems(after, version) for version in ("1.25", "1.26", "1.27", "1.28", "1.37")] == [[]] * 5


@pytest.mark.parametrize("component", ["sidecar", "plain-container"])
def test_what_does_not_ask_for_it_is_left_alone(component, overlay):
    before = [manifest("Deployment", labels={}), manifest("Pod", labels={"ullage.dev/enabled": "false"})]
    assert kustomize("1.37", overlay(before, component)) == before


def test_a_job_gets_no_container_that_would_never_end(overlay):
    before = manifest("Job")
    assert kustomize("1.37", overlay([before], "plain-container")) == [before]


def test_one_entry_of_a_kustomization_names_the_image(overlay):
    images = [{"name": "ullage", "newName": "registry.example/ullage", "newTag": "1.2.3"}]
    group = leader_worker_set(workerTemplate={"spec": GROUP_POD})

    built = kustomize("1.31", overlay([manifest("Pod"), group], "sidecar", "leaderworkerset/worker", images=images))

    ours = [c["image"] for pod in templates(built) for c in pod["spec"]["initContainers"] if "ullage" in c["name"]]
    assert ours == ["registry.example/ullage:1.2.3"] * 4


def test_a_container_of_another_name_is_not_guessed(overlay):
    pod = {**POD, "containers": [{**ENGINE, "name": "server"}]}
    (after,) = kustomize("1.37", overlay([manifest("Pod", spec=pod)], "sidecar"))
    assert problems(after) == ["vllm: no image"], "the API server refuses it, too"


def test_a_pythonpath_of_the_engine_is_replaced_unless_the_overlay_says_both(overlay):
    engine = {**ENGINE, "env": [*ENGINE["env"], {"name": "PYTHONPATH", "value": "/app"}]}
    template = {**TEMPLATE, "spec": {**POD, "containers": [engine]}}
    before = manifest("Deployment", spec={**SPECS["Deployment"], "template": template})
    both = manifest("Deployment", spec={"template": {"spec": {"containers": [{"name": "vllm", "env": [BOTH]}]}}})

    (replaced,) = kustomize("1.37", overlay([before], "sidecar"))
    (merged,) = kustomize("1.37", overlay([before], "sidecar", patches=[{"patch": yaml.safe_dump(both)}]))

    where = "$.spec.template.spec.containers[0](vllm).env[2](PYTHONPATH).value"
    assert lost(before, replaced) == lost(before, merged) == [where]
    assert pythonpath(replaced) == "/opt/ullage"
    assert pythonpath(merged) == "/opt/ullage:/app"


def pythonpath(after):
    """What the engine is told."""
    (pod,) = templates(after)
    return next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "PYTHONPATH")


@pytest.mark.parametrize("kubectl", KUBECTL)
def test_leader_and_workers_of_a_group_have_ullage_and_all_that_they_had(kubectl, overlay):
    leader = {"metadata": {"labels": {"role": "leader"}}, "spec": GROUP_POD}
    before = leader_worker_set(leaderTemplate=leader, workerTemplate={"spec": GROUP_POD})

    (after,) = kustomize(kubectl, overlay([before], "leaderworkerset/leader", "leaderworkerset/worker"))

    assert lost(before, after) == []
    assert problems(after) == []
    for pod in templates(after):
        assert lost(FRAGMENT["spec"]["volumes"], pod["spec"]["volumes"]) == []
        assert lost(ENGINE_OURS, pod["spec"]["containers"][0]) == []
        missing_in_group = lost(FRAGMENT["spec"]["initContainers"], pod["spec"]["initContainers"])
        assert missing_in_group == ["$[1](ullage).livenessProbe"], "a restart would make the group anew"
        assert pod["metadata"]["labels"]["ullage.dev/enabled"] == "true"


def test_a_group_without_a_leader_template_takes_the_worker_part_only(overlay):
    before = leader_worker_set(workerTemplate={"spec": GROUP_POD})

    complaint = kustomize("1.37", overlay([before], "leaderworkerset/leader"), fails=True)
    (after,) = kustomize("1.37", overlay([before], "leaderworkerset/worker"))

    assert "leaderTemplate" in complaint
    assert lost(before, after) == []
    assert "leaderTemplate" not in after["spec"]["leaderWorkerTemplate"]


def test_init_containers_of_a_group_are_never_replaced(overlay, tmp_path):
    before = leader_worker_set(workerTemplate={"spec": {**GROUP_POD, "initContainers": POD["initContainers"]}})
    directory = overlay([before], "leaderworkerset/worker")

    complaint = kustomize("1.37", directory, fails=True)
    assert "initContainers" in complaint

    patch = tmp_path / "kustomize/leaderworkerset/worker/appends.yaml"
    patch.write_text(yaml.safe_dump(yaml.safe_load(patch.read_text())[2:]))  # as its README says
    (after,) = kustomize("1.37", directory)
    assert lost(before, after) == []
    assert len(templates(after)[0]["spec"]["initContainers"]) == 3
