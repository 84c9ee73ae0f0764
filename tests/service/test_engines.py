"""What the sidecar knows of engines is what the distribution declares, and what a hook records."""

from __future__ import annotations

import importlib.metadata

import pytest

from ullage.host import environment
from ullage_sidecar.engines import ENGINES, Engine


def test_the_engines_are_those_that_the_distribution_has_a_plugin_for():
    declared = importlib.metadata.entry_points(name="ullage")
    plugins = {(point.group, point.value) for point in declared if point.value.startswith("ullage.engines.")}

    assert {(engine.entry_point_group, engine.plugin) for engine in ENGINES} == plugins


@pytest.mark.parametrize("value", ["", "ullage", "lora,ullage", "lora, ullage", "a=b", " "])
@pytest.mark.parametrize("neighbours", [(), ("FIRST_PLUGINS",), ("FIRST_PLUGINS", "Z_MY_PLUGINS")])
def test_the_value_that_a_hook_recorded_is_found_among_others(monkeypatch, value, neighbours):
    for name in neighbours:
        monkeypatch.setenv(name, "other,MY_PLUGINS")
    monkeypatch.setenv("MY_PLUGINS", value)
    first, *last = neighbours or ("UNSET_PLUGINS",)
    recorded = environment.install_info((first, "MY_PLUGINS", *last))["plugin_variables"]

    found = Engine("mine", plugin_variable="MY_PLUGINS", entry_point_group="mine").allowed_plugins(recorded)

    assert found == value


@pytest.mark.parametrize("recorded", ["", "NOT_MY_PLUGINS=ullage", "OTHER_PLUGINS=MY_PLUGINS"])
def test_a_variable_that_was_not_recorded_has_no_value(recorded):
    engine = Engine("mine", plugin_variable="MY_PLUGINS", entry_point_group="mine")

    assert engine.allowed_plugins(recorded) is None


def test_a_hook_records_no_plugin_variable_that_is_not_set(monkeypatch):
    monkeypatch.delenv("MY_PLUGINS", raising=False)

    assert "plugin_variables" not in environment.install_info(("MY_PLUGINS",))
