"""What must hold of every manifest: strict schemas, restart policies, and that a patch takes nothing away."""

from __future__ import annotations

import functools
import subprocess

import jsonschema
import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from harness import ROOT, missing

DEPLOY = ROOT / "deploy"
KUBERNETES = [f"1.{minor}" for minor in range(29, 38)]
"""Native sidecars are there from 1.29 on; 1.37 is the newest schema that the validator has."""
KUBECTL = {"1.31": ROOT / ".tools/helm3/kubectl", "1.37": ROOT / ".tools/helm4/kubectl"}
HELM = {"3.17": ROOT / ".tools/helm3/helm", "4.3": ROOT / ".tools/helm4/helm"}
NO_SCHEMA = ("leaderworkerset.x-k8s.io", "serving.kserve.io", "nvidia.com")
"""API groups whose schemas are in no registry: of their manifests only the pod templates are checked."""


def run(program, *arguments, fails=False):
    """Run a tool; return what it wrote, or what it complained about if it must fail."""
    if not program.exists():
        missing(f"{program} is not there: make setup")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stderr or done.stdout
    return done.stderr if fails else done.stdout


def kustomize(version, directory, *, fails=False):
    """Return the manifests that kubectl of ``version`` builds, or its complaint."""
    output = run(KUBECTL[version], "kustomize", directory, fails=fails)
    return output if fails else list(yaml.safe_load_all(output))


def templates(tree):
    """Return all pod templates in a manifest, and the pod that it is."""
    if isinstance(tree, list):
        return [found for one in tree for found in templates(one)]
    if not isinstance(tree, dict):
        return []
    if isinstance(tree.get("spec"), dict) and "containers" in tree["spec"]:
        return [tree]
    return [found for one in tree.values() for found in templates(one)]


def problems(manifest, kubernetes="1.37"):
    """Return what is wrong with a manifest; unknown fields are wrong, too."""
    found = [wrong for template in templates(manifest) for wrong in _beyond_schemas(template["spec"])]
    group = manifest["apiVersion"].partition("/")[0]
    if group == "monitoring.coreos.com":
        errors = jsonschema.Draft202012Validator(_strict_schema(manifest["kind"])).iter_errors(manifest)
        found += [f"{error.json_path}: {error.message}" for error in errors]
    elif group in NO_SCHEMA:
        assert templates(manifest), f"no pod template in {manifest['kind']}"
        for template in templates(manifest):
            found += _validate(_as_deployment(template), kubernetes)
    else:
        found += _validate(manifest, kubernetes)
    return found


def _validate(manifest, kubernetes):
    try:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def _as_deployment(template):
    labels = {"app": "any"}
    metadata = template.get("metadata", {})
    template = {**template, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"}, "spec": spec}


def _beyond_schemas(spec):
    """Return what the API server refuses, or worse takes, and schemas do not know: they would allow "Alway"."""
    inits, containers = spec.get("initContainers", []), spec["containers"]
    wrong = [f"{c['name']}: restartPolicy" for c in inits if c.get("restartPolicy", "Always") != "Always"]
    wrong += [f"{c['name']}: restartPolicy" for c in containers if "restartPolicy" in c]
    wrong += (
        ["pod: restartPolicy"] if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never") else []
    )
    wrong += [f"{c['name']}: no image" for c in inits + containers if "image" not in c]
    return wrong


@functools.cache
def _strict_schema(kind):
    """The schema of a custom resource of prometheus-operator, which in itself would allow unknown fields."""
    return _closed(getattr(prometheus_operator, kind).model_json_schema(by_alias=True))


def _closed(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _closed(value)
    elif isinstance(schema, list):
        for value in schema:
            _closed(value)
    return schema


def lost(before, after, path="$"):
    """Return where ``after`` lacks something of ``before``; more in ``after`` is no loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            gone
            for key, value in before.items()
            for gone in (lost(value, after[key], f"{path}.{key}") if key in after else [f"{path}.{key}"])
        ]
    if isinstance(before, list) and isinstance(after, list):
        left, gone = list(after), []
        for index, value in enumerate(before):
            kept = next((one for one in left if not lost(value, one)), None)
            if kept is None:
                gone += _nearest(value, left, f"{path}[{index}]")
            else:
                left.remove(kept)
        return gone
    return [] if before == after else [path]


def _nearest(value, left, path):
    """Say what is lost of a named element; all of it, if nothing has its name."""
    if isinstance(value, dict):
        for one in left:
            if isinstance(one, dict) and one.get("name") == value.get("name") is not None:
                return lost(value, one, f"{path}({value['name']})")
    return [path]


def is_guaranteed(template):
    """Whether the kubelet would give the pod the quality of service Guaranteed."""
    spec = template["spec"]
    all_resources = [c.get("resources", {}) for c in [*spec.get("initContainers", []), *spec["containers"]]]
    return all(
        {"cpu", "memory"} <= resources.get("limits", {}).keys()
        and resources.get("requests", resources["limits"]) == resources["limits"]
        for resources in all_resources
    )
