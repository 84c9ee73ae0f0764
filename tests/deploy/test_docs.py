"""What the pages about deployment show is run: manifests are built, queries asked."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from harness import ROOT
from manifests import DEPLOY, KUBECTL, kustomize, lost, problems, run, templates

FIRST = (ROOT / "docs/first-ten-minutes.md").read_text()
SCALE = (ROOT / "docs/scale-out.md").read_text()
REMOTE = re.compile(r"https://github\.com/ullage/ullage//(\S+?)\?ref=v[\d.]+")
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  replicas: 5
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.32.0"}]}
"""


def blocks(text, language):
    """The code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("kubectl", KUBECTL)
def test_the_canary_is_one_pod_more_with_ullage_and_a_selector_of_its_own(kubectl, tmp_path):
    (kustomization,) = blocks(FIRST, "yaml")
    assert len(REMOTE.findall(kustomization)) == 2
    # The components of this tree, not of a release.
    (tmp_path / "kustomization.yaml").write_text(REMOTE.sub(r"\1", kustomization))
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "deploy/kustomize")
    (tmp_path / "vllm.yaml").write_text(DEPLOYMENT)

    (canary,) = kustomize(kubectl, tmp_path)

    assert canary["metadata"]["name"] == "vllm-canary"
    assert canary["spec"]["replicas"] == 1
    assert canary["spec"]["selector"]["matchLabels"] == {"app": "vllm", "track": "canary"}
    template = yaml.safe_load(DEPLOYMENT)["spec"]["template"]
    assert lost(template, templates(canary)[0]) == []
    assert [c["name"] for c in templates(canary)[0]["spec"]["initContainers"]] == ["ullage-install-hook", "ullage"]
    assert problems(canary) == []


def test_the_example_of_the_kustomize_page_builds(tmp_path):
    kustomization = blocks((DEPLOY / "kustomize/README.md").read_text(), "yaml")[0]
    (tmp_path / "kustomization.yaml").write_text(REMOTE.sub(r"\1", kustomization))
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "deploy/kustomize")
    labelled = yaml.safe_load(DEPLOYMENT)
    labelled["metadata"]["labels"] = {"ullage.dev/enabled": "true"}
    (tmp_path / "vllm.yaml").write_text(yaml.safe_dump(labelled))
    (built,) = kustomize("1.37", tmp_path)
    assert templates(built)[0]["spec"]["initContainers"][1]["image"] == "registry.example/ullage:0.1.0"


LATENCY = 'vllm:inter_token_latency_seconds_bucket{namespace="s", pod="%s", le="%s"}'
SERIES = {
    'ullage_build_info{namespace="s", pod="watched"}': "1x40",
    'ullage_process_info{job="u", namespace="s", pod="watched", process="vllm0/core", model_name="m"}': "1x40",
    'ullage_buffer_high_water_ratio{job="u", namespace="s", pod="watched", process="vllm0/core", buffer="kv_blocks"}': (
        "0.75x40"
    ),
    # All tokens of the one come between 10 and 20 ms, all of the other between 20 and 40 ms.
    LATENCY % ("watched", "0.01"): "0x40",
    LATENCY % ("watched", "0.02"): "0+60x40",
    LATENCY % ("watched", "+Inf"): "0+60x40",
    LATENCY % ("plain", "0.02"): "0x40",
    LATENCY % ("plain", "0.04"): "0+60x40",
    LATENCY % ("plain", "+Inf"): "0+60x40",
}
EXPECTED = [
    {"labels": '{namespace="s", pod="watched", model_name="m"}', "value": 1},
    {"labels": "{}", "value": 0.015},
    {"labels": "{}", "value": 0.03},
    {"labels": '{model_name="m"}', "value": 0.75},
]


def test_the_queries_answer_what_the_pages_say(promtool, tmp_path):
    queries = blocks(FIRST, "promql") + blocks(SCALE, "promql")
    tests = [
        {"expr": expression, "eval_time": "30m", "exp_samples": [expected]}
        for expression, expected in zip(queries, EXPECTED, strict=True)
    ]
    series = [{"series": name, "values": values} for name, values in SERIES.items()]
    file = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(file))
    assert "SUCCESS" in run(promtool, "test", "rules", tmp_path / "tests.yaml")


def pages():
    """The pages about deployment."""
    named = [ROOT / "docs" / name for name in ("first-ten-minutes.md", "scale-out.md", "security.md")]
    return named + sorted(DEPLOY.rglob("*.md"))


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
