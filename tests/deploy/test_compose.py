"""The compose file: checked by schema and by the tools of those that read its parts. There is no Docker engine here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml
from harness import ROOT
from manifests import DEPLOY, run

COMPOSE = DEPLOY / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
FRAGMENT = yaml.safe_load((DEPLOY / "fragment.yaml").read_text())["spec"]
CHECK = Path(sys.executable).with_name("check-jsonschema")
VOLUMES = {"hook": "ullage-hook", "segments": "ullage"}  # ours, and the fragment's


def test_it_is_what_compose_can_read():
    run(CHECK, "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")


@pytest.mark.parametrize(("right", "wrong"), [("read_only:", "readonly:"), ("shm_size: 8gb", "shm_size: [8]")])
def test_what_compose_cannot_read_is_found(right, wrong, tmp_path):
    text = (COMPOSE / "compose.yaml").read_text()
    assert right in text
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
    run(CHECK, "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml", fails=True)


def mounts(service):
    """Its volumes as a pod has them."""
    parts = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {(VOLUMES[name], path, mode == ["ro"]) for name, path, *mode in parts}


@pytest.mark.parametrize(
    ("service", "container"),
    [
        ("install-hook", FRAGMENT["initContainers"][0]),
        ("ullage", FRAGMENT["initContainers"][1]),
        ("engine", FRAGMENT["containers"][0]),
    ],
)
def test_each_of_the_three_has_what_the_fragment_gives_it(service, container):
    ours = SERVICES[service]
    env = {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
    assert mounts(service) == {(m["name"], m["mountPath"], m.get("readOnly", False)) for m in container["volumeMounts"]}
    assert ours.get("environment", {}) == env
    if "args" in container:
        assert ours["command"] == container["args"]
        assert ours["image"] == f"${{ULLAGE_IMAGE:-{container['image']}}}"
        assert (ours["read_only"], ours["cap_drop"]) == (True, ["ALL"])


def test_every_image_has_a_tag_and_every_port_is_on_the_loopback_interface():
    images = {service["image"] for service in SERVICES.values()}
    assert all(":" in image.rpartition("/")[2].replace(":-", "") for image in images), images
    assert not any("latest" in image for image in images)
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_is_mounted_is_there():
    volumes = [volume for service in SERVICES.values() for volume in service["volumes"] if volume.startswith(".")]
    sources = [COMPOSE / volume.split(":")[0] for volume in volumes]
    assert len(sources) == 5
    assert [path for path in sources if not (path.is_file() or any(path.glob("**/*.*")))] == []


def test_prometheus_takes_its_configuration_and_the_rules(promtool, tmp_path):
    shutil.copytree(ROOT / "dashboards/rules", tmp_path / "rules")
    text = (COMPOSE / "prometheus.yml").read_text()
    assert "/etc/prometheus/rules" in text
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus", str(tmp_path)))
    assert "2 rule files found" in run(promtool, "check", "config", tmp_path / "prometheus.yml")


def test_alertmanager_takes_its_configuration():
    run(ROOT / ".tools/prometheus/usr/bin/amtool", "check-config", COMPOSE / "alertmanager.yml")


def test_grafana_finds_the_dashboards_where_they_are_mounted():
    provider = yaml.safe_load((COMPOSE / "grafana/dashboards/ullage.yaml").read_text())["providers"][0]
    assert f"../../dashboards/grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    source = yaml.safe_load((COMPOSE / "grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
