"""Serving stacks: what is made for each, applied to a minimal manifest of its kind."""

from __future__ import annotations

import copy
import shutil
import subprocess

import pytest
import yaml
from manifests import DEPLOY, KUBECTL, KUBERNETES, kustomize, lost, problems, templates

FRAGMENT = yaml.safe_load((DEPLOY / "fragment.yaml").read_text())
STACKS = DEPLOY / "stacks"
# What a form leaves out of the fragment, and why.
MISSING = {
    "vllm-chart": [],
    "dynamo": [],
    "leaderworkerset": ["$.initContainers[1](ullage).livenessProbe"],  # a restart would make the group anew
    "production-stack": ["$.initContainers[1]"],  # a container like others
}


def load(path):
    """A file of one manifest."""
    return yaml.safe_load((STACKS / path).read_text())


def ours(template, engine):
    """Return the fragment's pod, for an engine's container of another name, as the image transformer leaves it."""
    spec = copy.deepcopy(FRAGMENT["spec"])
    spec["containers"][0]["name"] = engine
    image = template["spec"]["initContainers"][0]["image"]
    for container in spec["initContainers"]:
        container["image"] = image
    return spec


@pytest.mark.parametrize("kubectl", KUBECTL)
@pytest.mark.parametrize("stack", MISSING)
def test_a_patched_stack_has_ullage_and_all_that_it_had(stack, kubectl):
    before = load(f"{stack}/{'rendered' if (STACKS / stack / 'rendered.yaml').exists() else 'example'}.yaml")

    (after,) = kustomize(kubectl, STACKS / stack)

    assert lost(before, after) == []
    assert problems(after) == []
    patched = [one for one in templates(after) if "initContainers" in one["spec"]]
    assert len(patched) == (2 if stack == "leaderworkerset" else 1)
    for template in patched:
        engine = template["spec"]["containers"][0]["name"]
        assert lost(ours(template, engine), template["spec"]) == MISSING[stack]
        assert template["metadata"]["labels"]["ullage.dev/enabled"] == "true"
        assert template["spec"]["initContainers"][0]["image"] == "registry.example/ullage:0.1.0"


def test_the_sidecar_of_production_stack_is_a_container_like_others():
    (after,) = kustomize("1.37", STACKS / "production-stack")
    sidecar = next(c for c in templates(after)[0]["spec"]["containers"] if c["name"] == "ullage")
    expected = {**FRAGMENT["spec"]["initContainers"][1], "image": "registry.example/ullage:0.1.0"}
    del expected["restartPolicy"]
    assert sidecar == expected


def test_dynamo_is_not_patched_where_the_worker_is_another_component(tmp_path):
    graph = load("dynamo/example.yaml")
    graph["spec"]["components"].reverse()
    shutil.copytree(STACKS / "dynamo", tmp_path, dirs_exist_ok=True)
    (tmp_path / "example.yaml").write_text(yaml.safe_dump(graph))
    assert "/spec/components/1/name" in kustomize("1.37", tmp_path, fails=True)


def test_what_is_added_by_hand_is_the_fragment_in_at_most_forty_lines(tmp_path):
    shutil.copytree(STACKS / "deployment", tmp_path, dirs_exist_ok=True)
    diff = tmp_path / "ullage.diff"
    changed = [line for line in diff.read_text().splitlines()[2:] if line[0] in "+-"]
    assert len(changed) <= 40

    subprocess.run(["git", "apply", "-p0", diff.name], cwd=tmp_path, check=True)

    before, after = load("deployment/deployment.yaml"), yaml.safe_load((tmp_path / "deployment.yaml").read_text())
    template = after["spec"]["template"]
    assert lost(before, after) == []
    assert lost(FRAGMENT, template) == []
    assert [problems(after, version) for version in KUBERNETES] == [[]] * len(KUBERNETES)
    # Nor is there anything else.
    assert count(after) - count(before) == count(FRAGMENT) - count({"name": "vllm"})


def count(tree):
    """How many plain values are in it."""
    if isinstance(tree, dict):
        return sum(map(count, tree.values()))
    return sum(map(count, tree)) if isinstance(tree, list) else 1


def test_llm_d_takes_the_fragment_as_values():
    """A stand-in for the chart, which is in no registry: it puts values where its templates put them."""
    values = load("llm-d/values.yaml")["decode"]
    (engine,) = values["containers"]
    container = {"name": "vllm", "image": "ghcr.io/llm-d/llm-d-inference-sim:v0.6.1", **engine}
    proxy = {"name": "routing-proxy", "image": "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0", "restartPolicy": "Always"}
    pod = {
        "initContainers": [proxy, *values["initContainers"]],
        "containers": [container],
        "volumes": values["volumes"],
    }
    labels = {"llm-d.ai/inferenceServing": "true"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "decode"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }

    assert set(values) == {"initContainers", "containers", "volumes"}
    assert lost(FRAGMENT["spec"], pod) == []
    assert [problems(deployment, version) for version in KUBERNETES] == [[]] * len(KUBERNETES)


def test_kserve_merges_the_fragment_into_its_container(tmp_path):
    """kustomize's strategic merge stands for the controller's, which is Kubernetes' own."""
    config, service = load("kserve/config.yaml"), load("kserve/example.yaml")
    labels = {"app.kubernetes.io/part-of": "llminferenceservice"}
    main = {
        "name": "main",
        "image": "ghcr.io/llm-d/llm-d:v0.4.0",
        "args": ["--port", "8000"],
        "env": [{"name": "HOME", "value": "/home"}],
        "volumeMounts": [{"name": "home", "mountPath": "/home"}],
    }
    pod = {"containers": [main], "volumes": [{"name": "home", "emptyDir": {}}]}
    before = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "qwen-kserve"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    patch = {**before, "spec": {"template": {"spec": config["spec"]["template"]}}}
    (tmp_path / "before.yaml").write_text(yaml.safe_dump(before))
    kustomization = {"resources": ["before.yaml"], "patches": [{"patch": yaml.safe_dump(patch)}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    (after,) = kustomize("1.37", tmp_path)

    assert {"name": config["metadata"]["name"]} in service["spec"]["baseRefs"]
    assert lost(before, after) == []
    (template,) = templates(after)
    assert lost(ours(template, "main"), template["spec"]) == []
    assert problems(after) == []


@pytest.mark.parametrize("stack", sorted(path.name for path in STACKS.iterdir() if path.is_dir()))
def test_each_stack_says_how_to_apply_it_to_verify_it_and_to_take_it_out(stack):
    text = (STACKS / stack / "README.md").read_text()
    assert [text.count(f"* **{what}**:") for what in ("Apply", "Verify", "Take it out")] == [1, 1, 1]
    assert f"[{stack}]({stack}/)" in (STACKS / "README.md").read_text()
