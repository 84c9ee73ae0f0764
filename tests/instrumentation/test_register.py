"""The plugin's entry point: vLLM calls it without a guard, so it never raises. Fake modules stand for vLLM."""

from __future__ import annotations

import importlib.metadata
from itertools import chain

import pytest

from ullage.engines.registry import supported
from ullage.engines.vllm import PROBES, SUPPORTED

FAKE = """
import sys, types
vllm = types.ModuleType("vllm")
vllm.__version__ = {version!r}
sys.modules["vllm"] = vllm
{modules}
from ullage.engines.vllm import register
register()
register()
from ullage.host.process import process
print(sorted(name for name in sys.modules if name.startswith("vllm")), process.session.open() is not None)
"""


def test_vllm_finds_the_plugin_by_its_entry_point():
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="ullage")

    assert entry.value == "ullage.engines.vllm:register"
    assert callable(entry.load())


def test_each_module_of_vllm_is_watched_by_the_modules_whose_hooks_name_it():
    named = {}
    for module in dict.fromkeys(chain.from_iterable(PROBES.values())):
        for hook in importlib.import_module(module, "ullage.engines.vllm").PATCHES:
            named.setdefault(hook.module, {})[module] = None

    assert {module: tuple(ours) for module, ours in named.items()} == dict(PROBES)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.22.1", True),
        ("0.32.0+cpu", True),
        ("0.33.1.dev12+gabc", True),
        ("0.21.9", False),
        ("0.34.0", False),
        ("1.0.0", False),
        ("dev", False),
        ("", False),
    ],
)
def test_known_versions(version, known):
    assert supported(version, SUPPORTED) is known


@pytest.mark.fault("an unknown version of vLLM", sees="one log line")
@pytest.mark.parametrize("version", ["99.0", "", "dev"])
def test_an_unknown_version_is_one_log_line_and_nothing_else(program, segments, version):
    running = program(
        FAKE.format(version=version, modules="")
        + "assert not any('ullage' in repr(finder) for finder in sys.meta_path)\n"
        + "assert 'ullage.engines.patch' not in sys.modules"
    )

    out, err = running.process.communicate(timeout=60)

    assert running.process.returncode == 0, err
    assert out.startswith("['vllm']")
    assert len(err.strip().splitlines()) == 1
    assert "off: vllm" in err


def test_registering_imports_nothing_of_vllm_and_opens_nothing(program, segments):
    code = FAKE.format(version="0.32.0", modules="").replace("process.session.open()", "process.session._segment")

    out = program(code).finish()

    assert out.strip() == "['vllm'] False"
    assert list(segments.iterdir()) == []


def test_a_process_imports_no_probe_before_the_engine_imports_what_it_watches(program):
    code = FAKE.format(version="0.32.0", modules="")
    ours = "print(sorted(name for name in sys.modules if name.startswith('ullage.engines.vllm.')))"

    assert program(code + ours).finish().splitlines()[-1] == "[]"


def test_an_import_of_ullage_loads_little_until_something_is_recorded(program):
    ours = "print(sum(name.startswith('ullage') for name in sys.modules))"

    assert int(program(f"import sys, ullage\n{ours}").finish()) <= 20


CHANGED = """
module = types.ModuleType("vllm.v1.core.sched.scheduler")
class Scheduler:
    def schedule(self): return 1
    update_from_output = 3
module.Scheduler = Scheduler
sys.modules[module.__name__] = module
pool = types.ModuleType("vllm.v1.core.block_pool")
class BlockPool:
    def get_new_blocks(self, count): return []
pool.BlockPool = BlockPool
sys.modules[pool.__name__] = pool
"""


@pytest.mark.fault("a vLLM with other classes", sees="probe status")
def test_missing_classes_and_changed_signatures_are_statuses_not_errors(program, segments):
    out = program(
        FAKE.format(version="0.32.0", modules=CHANGED)
        + """
from pathlib import Path
from ullage.segment import reader
for probe in reader.read(process.session.open().path).probes:
    print(probe.name, probe.status.name, probe.detail, sep="|")
"""
    ).finish()

    probes = {line.split("|")[0]: line.split("|")[1:] for line in out.splitlines() if "|" in line}
    assert probes["Scheduler.schedule"] == ["INSTALLED", ""]
    assert probes["Scheduler.__init__"] == ["CHANGED", "it is a wrapper_descriptor, not a function"]
    assert probes["Scheduler.update_from_output"] == ["CHANGED", "it is a int, not a function"]
    assert probes["Scheduler._preempt_request"][0] == "ABSENT"
    assert probes["BlockPool.get_new_blocks"] == ["CHANGED", "no parameter num_blocks"]
    assert "GPUModelRunner.execute_model" not in probes


@pytest.mark.fault("the model-inspection subprocess", sees="no segment")
def test_in_the_model_inspection_subprocess_nothing_is_installed(program, segments, tmp_path):
    package = tmp_path / "vllm/model_executor/models"
    package.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text("__version__ = '0.32.0'")
    (package / "registry.py").write_text(
        "import sys\nfrom ullage.engines.vllm import register\nregister()\n"
        "print([f for f in sys.meta_path if 'ullage' in type(f).__module__])\n"
    )

    out = program(
        """
        import subprocess, sys
        command = [sys.executable, "-m", "vllm.model_executor.models.registry"]
        print(subprocess.run(command, cwd=sys.argv[1], check=True, text=True, capture_output=True).stdout)
        """,
        tmp_path,
    ).finish()

    assert out.strip() == "[]"
    assert list(segments.iterdir()) == []
