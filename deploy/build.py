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
    return {HERE / name: NOTE + _to_yaml(patch) for name, patch in patches.items()}


def differing() -> list[Path]:
    """Return the files that are not what the fragment makes of them."""
    return [path for path, text in forms().items() if not path.exists() or path.read_text() != text]


class _Dumper(yaml.SafeDumper):
    """Writes what stands twice twice: a form is read by itself."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _to_yaml(data: object) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


def main(arguments: list[str]) -> int:
    """Write what differs, or only name it."""
    for path in differing():
        print(path.relative_to(HERE.parent))
        if arguments == ["--check"]:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(forms()[path])
    return 1 if differing() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
