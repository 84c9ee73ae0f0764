"""Writes every form of ``fragment.yaml``, so that there is one place where it is decided what a pod gets.

``python deploy/build.py`` writes them; with ``--check`` it only says which ones differ, and then fails.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
NOTE = "# Made from deploy/fragment.yaml by deploy/build.py.\n"
CHART = HERE / "helm/ullage"
GROUP = "/spec/leaderWorkerTemplate"
Tree = dict[str, Any]


def read_fragment() -> Tree:
    """Return ``metadata`` and ``spec`` of a pod template, as the fragment adds to them."""
    fragment: Tree = yaml.safe_load((HERE / "fragment.yaml").read_text())
    return fragment


def plain_container(fragment: Tree) -> Tree:
    """Return it for clusters before 1.29: the sidecar is a container like others, and keeps a Job from ending."""
    result = copy.deepcopy(fragment)
    sidecar = result["spec"]["initContainers"].pop()
    del sidecar["restartPolicy"]
    result["spec"]["containers"].append(sidecar)
    return result


def never_restarted(fragment: Tree) -> Tree:
    """Return it for a group of pods that is made anew when any container restarts: nothing restarts the sidecar."""
    result = copy.deepcopy(fragment)
    del result["spec"]["initContainers"][-1]["livenessProbe"]
    return result


def workload(fragment: Tree) -> Tree:
    """Return a strategic merge patch of all that has a pod template; kustomize takes kind and name of its target."""
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"}, "spec": {"template": fragment}}


def pod(fragment: Tree) -> Tree:
    """Return a strategic merge patch of a pod."""
    metadata = {"name": "any", **fragment["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": fragment["spec"]}


def appends(fragment: Tree, template: str) -> list[Tree]:
    """Return a JSON patch, for kinds whose lists no merge understands: they would be replaced.

    Args:
        fragment: What to append, to the lists of the pod and to those of its first container.
        template: Where the pod template is, such as ``/spec/leaderWorkerTemplate/workerTemplate``.
    """
    spec, engine = f"{template}/spec", f"{template}/spec/containers/0"
    ours = fragment["spec"]
    lists = {
        f"{spec}/initContainers": ours["initContainers"],
        f"{engine}/env": ours["containers"][0]["env"],
        f"{engine}/volumeMounts": ours["containers"][0]["volumeMounts"],
        f"{spec}/volumes": ours["volumes"],
    }
    return [
        # Where there are init containers already, this fails, instead of replacing them.
        {"op": "test", "path": f"{spec}/initContainers", "value": None},
        {"op": "add", "path": f"{spec}/initContainers", "value": []},
        *({"op": "add", "path": f"{path}/-", "value": one} for path, added in lists.items() for one in added),
    ]


def stacks(fragment: Tree) -> dict[str, object]:
    """Return what is made for serving stacks that take parts of a pod, each in a way of its own."""
    spec = fragment["spec"]
    engine = {key: spec["containers"][0][key] for key in ("env", "volumeMounts")}
    decode = {"initContainers": spec["initContainers"], "volumes": spec["volumes"], "containers": [engine]}
    kserve = {**spec, "containers": [{"name": "main", **engine}]}
    worker = "/spec/components/1"
    return {
        "stacks/llm-d/values.yaml": {"decode": decode},
        "stacks/kserve/config.yaml": {
            "apiVersion": "serving.kserve.io/v1alpha1",
            "kind": "LLMInferenceServiceConfig",
            "metadata": {"name": "ullage"},
            "spec": {"template": kserve},
        },
        "stacks/dynamo/worker.yaml": [
            {"op": "test", "path": f"{worker}/name", "value": "worker"},
            *(
                {"op": "add", "path": f"{worker}/podTemplate/metadata/labels/{name.replace('/', '~1')}", "value": value}
                for name, value in fragment["metadata"]["labels"].items()
            ),
            *appends(fragment, f"{worker}/podTemplate"),
        ],
    }


def library(fragment: Tree) -> str:
    """Return the named templates of the Helm chart, for charts of others; README.md says how they are called."""
    spec, image = fragment["spec"], fragment["spec"]["initContainers"][0]["image"]
    plain = plain_container(fragment)["spec"]
    parts = {
        "podLabels": fragment["metadata"]["labels"],
        "initContainers": spec["initContainers"],
        "installHook": plain["initContainers"],
        "container": plain["containers"][1:],
        "env": spec["containers"][0]["env"],
        "volumeMounts": spec["containers"][0]["volumeMounts"],
        "volumes": spec["volumes"],
    }
    texts = [f'{{{{- define "ullage.{name}" -}}}}\n{_to_yaml(part)}{{{{- end }}}}\n' for name, part in parts.items()]
    return "{{- /* Made from deploy/fragment.yaml by deploy/build.py. */}}\n" + "".join(texts).replace(
        f"image: {image}", 'image: {{ required "ullage: say which image" .image | quote }}'
    ).replace(
        "value: /opt/ullage", 'value: {{ prepend (compact (list .pythonpath)) "/opt/ullage" | join ":" | quote }}'
    )


def forms() -> dict[Path, str]:
    """Return the text of every file that is made from the fragment."""
    fragment = read_fragment()
    plain, group = plain_container(fragment), never_restarted(fragment)
    patches: dict[str, object] = {
        "kustomize/sidecar/workload.yaml": workload(fragment),
        "kustomize/sidecar/pod.yaml": pod(fragment),
        "kustomize/plain-container/workload.yaml": workload(plain),
        "kustomize/plain-container/pod.yaml": pod(plain),
        "kustomize/leaderworkerset/leader/appends.yaml": appends(group, f"{GROUP}/leaderTemplate"),
        "kustomize/leaderworkerset/worker/appends.yaml": appends(group, f"{GROUP}/workerTemplate"),
    }
    texts = {HERE / name: NOTE + _to_yaml(patch) for name, patch in (patches | stacks(fragment)).items()}
    texts[CHART / "templates/_pod.tpl"] = library(fragment)
    # A chart can only read what lies in it.
    for kind, pattern in {"dashboards": "grafana/*.json", "rules": "rules/*.yaml"}.items():
        for source in sorted((HERE.parent / "dashboards").glob(pattern)):
            texts[CHART / "files" / kind / source.name] = source.read_text()
    return texts


def differing() -> list[Path]:
    """Return the files that are not what the fragment makes of them, and copies whose source is gone."""
    made = forms()
    stale = [path for path in (CHART / "files").rglob("*.*") if path not in made]
    return [path for path, text in made.items() if not path.exists() or path.read_text() != text] + stale


class _Dumper(yaml.SafeDumper):
    """Writes what stands twice twice: a form is read by itself."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _to_yaml(data: object) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


def main(arguments: list[str]) -> int:
    """Write what differs, or only name it."""
    made = forms()
    wrong = differing()
    for path in wrong:
        print(path.relative_to(HERE.parent))
        if arguments == ["--check"]:
            continue
        if path not in made:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])
    return 1 if wrong and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
