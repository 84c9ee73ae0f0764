"""The Helm chart, rendered by real Helm 3 and 4."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml
from harness import ROOT
from manifests import DEPLOY, HELM, KUBERNETES, is_guaranteed, lost, problems, run, templates

CHART = DEPLOY / "helm/ullage"
DASHBOARDS = sorted((ROOT / "dashboards/grafana").glob("*.json"))
RULES = sorted((ROOT / "dashboards/rules").glob("*.yaml"))
FRAGMENT = yaml.safe_load((DEPLOY / "fragment.yaml").read_text())
ALL = {"networkPolicy": {"enabled": True}}
PARENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  selector: {matchLabels: {app: vllm}}
  template:
    metadata:
      labels:
        app: vllm
        {{- include "ullage.podLabels" . | nindent 8 }}
    spec:
      initContainers:
        {{- include "ullage.%s" .Values.with | nindent 8 }}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          resources: {limits: {cpu: "8", memory: 64Gi}}
          env:
            {{- include "ullage.env" .Values.with | nindent 12 }}
          volumeMounts:
            {{- include "ullage.volumeMounts" .Values.with | nindent 12 }}
        %s
      volumes:
        {{- include "ullage.volumes" .Values.with | nindent 8 }}
"""


@pytest.fixture(params=HELM)
def helm(request, tmp_path):
    """Render the chart, or another one, with values; return the manifests, or the complaint."""

    def render(values=None, chart=CHART, *, fails=False):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        output = run(HELM[request.param], "template", "ullage", chart, "-n", "monitoring", "-f", file, fails=fails)
        return output if fails else [one for one in yaml.safe_load_all(output) if one]

    return render


def of_kind(manifests, kind):
    """Those of a kind, by name."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


@pytest.mark.parametrize("version", HELM)
def test_helm_finds_nothing_to_complain_about(version):
    assert "0 chart(s) failed" in run(HELM[version], "lint", "--strict", CHART)


def test_every_manifest_is_sound_on_every_kubernetes(helm):
    manifests = helm(ALL)
    assert {one["kind"] for one in manifests} == {"ConfigMap", "NetworkPolicy", "PodMonitor", "PrometheusRule"}
    found = [(version, wrong) for one in manifests for version in KUBERNETES for wrong in problems(one, version)]
    assert found == []


def test_it_has_every_dashboard_for_the_sidecar_of_grafana(helm):
    maps = of_kind(helm(), "ConfigMap").values()
    data = [text for one in maps for text in one["data"].values()]
    assert DASHBOARDS
    assert [json.loads(text) for text in data] == [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [one["metadata"]["labels"]["grafana_dashboard"] for one in maps] == ["1"] * len(DASHBOARDS)
    assert all(len(text) < 900_000 for text in data), "a ConfigMap holds a mebibyte"


def test_it_has_every_rule_and_prometheus_takes_them(helm, promtool, tmp_path):
    rules = of_kind(helm(), "PrometheusRule")
    assert sorted(rules) == [path.stem for path in RULES]
    for path in RULES:
        spec = rules[path.stem]["spec"]
        assert spec == yaml.safe_load(path.read_text())
        (tmp_path / path.name).write_text(yaml.safe_dump(spec))
        run(promtool, "check", "rules", tmp_path / path.name)


def test_a_rule_that_prometheus_refuses_is_found(promtool, tmp_path):
    broken = tmp_path / "rules.yaml"
    broken.write_text("groups: [{name: g, rules: [{alert: A, expr: 'rate(x)'}]}]")
    assert "rate" in run(promtool, "check", "rules", broken, fails=True)


def test_runbooks_are_where_a_value_says(helm):
    prefix = "https://wiki.example/ullage/"
    rules = of_kind(helm({"rules": {"runbookPrefix": prefix}}), "PrometheusRule").values()
    alerts = [rule for one in rules for group in one["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    assert {rule["annotations"]["runbook_url"] for rule in alerts} == {f"{prefix}{rule['alert']}.md" for rule in alerts}


def test_the_monitor_selects_the_port_that_the_fragment_has(helm):
    (monitor,) = of_kind(helm(), "PodMonitor").values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == FRAGMENT["spec"]["initContainers"][1]["ports"][0]["name"]
    assert monitor["spec"]["selector"]["matchLabels"] == FRAGMENT["metadata"]["labels"]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["spec"]["sampleLimit"] == 100_000


def test_what_selects_is_a_value(helm):
    labels = {"release": "prometheus"}
    selector = {"matchLabels": {"llm-d.ai/inferenceServing": "true"}}
    values = {
        "podMonitor": {"labels": labels, "selector": selector, "namespaces": ["serving"]},
        "rules": {"labels": labels},
        "dashboards": {"labels": {"find": "me"}},
    }
    manifests = helm(values)

    (monitor,) = of_kind(manifests, "PodMonitor").values()
    assert monitor["spec"]["selector"] == selector, "and not the default, too"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["serving"]}
    labelled = [monitor, *of_kind(manifests, "PrometheusRule").values()]
    assert [one["metadata"]["labels"]["release"] for one in labelled] == ["prometheus"] * (1 + len(RULES))
    assert all(one["metadata"]["labels"]["find"] == "me" for one in of_kind(manifests, "ConfigMap").values())


def test_what_is_disabled_is_not_there(helm):
    off = {"enabled": False}
    assert helm({"podMonitor": off, "rules": off, "dashboards": off}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"podmonitor": {}},
        {"podMonitor": {"sampleLimits": 1}},
        {"podMonitor": {"sampleLimit": "many"}},
        {"podMonitor": {"interval": "often"}},
        {"rules": {"runbookPrefix": "wiki"}},
        {"networkPolicy": {"from": [{"podSelectors": {}}]}},
    ],
    ids=str,
)
def test_a_value_that_is_wrong_is_refused(values, helm):
    assert "values don't meet the specifications" in helm(values, fails=True)


def allowed(policy, port, protocol, who=None):
    """Whether a NetworkPolicy lets somebody reach a port of the pods that it selects."""
    return any(
        one["protocol"] == protocol and one["port"] <= port <= one.get("endPort", one["port"])
        for rule in policy["spec"]["ingress"]
        if "from" not in rule or who in rule["from"]
        for one in rule["ports"]
    )


def test_a_network_policy_closes_no_port_that_the_pod_already_has(helm):
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    policies = of_kind(helm({"networkPolicy": {"enabled": True, "from": [prometheus]}}), "NetworkPolicy")

    (policy,) = policies.values()
    assert policy["spec"]["podSelector"]["matchLabels"] == FRAGMENT["metadata"]["labels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    closed = [
        (port, protocol)
        for protocol in ("TCP", "UDP", "SCTP")
        for port in range(1, 65536)
        if not allowed(policy, port, protocol)
    ]
    assert closed == [(9877, "TCP")]
    assert allowed(policy, 9877, "TCP", prometheus)


def test_a_network_policy_undoes_none_of_yours_if_told_so(helm):
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    values = {
        "networkPolicy": {"enabled": True, "otherPorts": False, "namespaces": ["a", "b"], "podSelector": selector}
    }
    policies = [one for one in helm(values) if one["kind"] == "NetworkPolicy"]
    assert [one["metadata"]["namespace"] for one in policies] == ["a", "b"]
    assert [one["spec"]["podSelector"] for one in policies] == [selector] * 2
    assert not any(allowed(policies[0], port, "TCP") for port in (1, 8000, 65535))
    assert allowed(policies[0], 9877, "TCP")


@pytest.fixture
def parent(tmp_path):
    """Write a chart of somebody else that includes our templates."""

    def write(inits, container=""):
        chart = tmp_path / "parent"
        shutil.copytree(CHART, chart / "charts/ullage")
        (chart / "templates").mkdir()
        (chart / "Chart.yaml").write_text("{apiVersion: v2, name: parent, version: 1.0.0}")
        (chart / "templates/deployment.yaml").write_text(PARENT % (inits, container))
        return chart

    return write


def test_a_chart_of_yours_can_include_the_fragment(helm, parent):
    image = "registry.example/ullage:0.1.0"
    manifests = helm({"with": {"image": image}}, parent("initContainers"))

    (deployment,) = of_kind(manifests, "Deployment").values()
    (template,) = templates(deployment)
    assert problems(deployment) == []
    assert is_guaranteed(template)
    assert lost(json.loads(json.dumps(FRAGMENT).replace("ullage:0.1.0", image)), template) == []


def test_a_chart_of_yours_keeps_its_pythonpath(helm, parent):
    manifests = helm({"with": {"image": "u:1", "pythonpath": "/app:/lib"}}, parent("initContainers"))
    (deployment,) = of_kind(manifests, "Deployment").values()
    env = {one["name"]: one["value"] for one in templates(deployment)[0]["spec"]["containers"][0]["env"]}
    assert env["PYTHONPATH"] == "/opt/ullage:/app:/lib"


def test_a_chart_of_yours_can_have_it_as_a_plain_container(helm, parent):
    chart = parent("installHook", '{{- include "ullage.container" .Values.with | nindent 8 }}')
    (deployment,) = of_kind(helm({"with": {"image": "u:1"}}, chart), "Deployment").values()
    (template,) = templates(deployment)
    assert [one["name"] for one in template["spec"]["initContainers"]] == ["ullage-install-hook"]
    assert [one["name"] for one in template["spec"]["containers"]] == ["vllm", "ullage"]
    assert problems(deployment, "1.25") == []


def test_a_chart_of_yours_that_names_no_image_is_told_so(helm, parent):
    assert "ullage: say which image" in helm({"with": {}}, parent("initContainers"), fails=True)
