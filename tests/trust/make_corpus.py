"""Writes the segments that the fuzzing starts from: what a real vLLM and a program with everything wrote.

Run by hand when the format or the hook records something new: ``python tests/trust/make_corpus.py``. It needs vLLM.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
import tiny_llama
from sealing import CORPUS, place

from ullage.segment import layout, reader

ROOT = Path(__file__).parent.parent.parent
NEUTRAL = {"hook_path": "/opt/ullage/ullage", "pythonpath": "/opt/ullage", "model_name": "tiny-llama"}
KV_BLOCKS = 24  # few: requests are preempted
EVERYTHING = """
import ullage
kinds = {k: ullage.buffer(f"{k}_rows", capacity=100, unit="rows", kind=k) for k in ("hard", "managed", "fixed")}
arena = ullage.buffer("arena", capacity=1 << 20, unit="bytes", location="pinned", limit="max_bytes", bytes=1 << 20)
for used in range(121):
    for buffer in kinds.values():
        buffer.observe(used)
for size in (2 << 20, 1 << 20, 4 << 20):
    arena.resize(size)
kinds["managed"].exhausted(); kinds["managed"].deferred()
width = ullage.Contract("block_table.width", dims=("rows", "columns"), relation=(">=", "=="), unit="columns")
limits = {"max_model_len": 200000, "block_size": 64, "backend": "flash", "eager": True}
width.claim("runner", (64, 3126), role="provides", inputs=limits)
width.claim("builder", (64, 3125), role="requires", inputs=limits | {"max_model_len": 199999})
width.compare((64, 3126), (65, 3125), inputs=lambda: ({"batch": 64}, {"batch": 65}))
metadata = ullage.SchedulerMetadata(max_num_seqs=16, fields_per_seq=1, connector_fields={"nixl": 2})
metadata.update(max_num_seqs=32)
ullage.step()
print("ready", flush=True)
input()
"""


def main():
    """Write the corpus again."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        model = tiny_llama.make(Path(scratch) / "model")
        for mode in ("processes", "in-process"):
            directory = Path(scratch) / mode
            directory.mkdir()
            with _vllm(directory, model, mode):
                _save(directory, "vllm" if mode == "processes" else "vllm-in-process")
        directory = Path(scratch) / "program"
        directory.mkdir()
        with _started([sys.executable, "-c", EVERYTHING], directory) as process:
            assert process.stdout.readline() == "ready\n"
            _save(directory, "program")


@contextlib.contextmanager
def _vllm(directory, model, mode):
    """Run vLLM, and have it answer some requests."""
    offline = ROOT / "tests/engines/offline.py"
    apart = "1" if mode == "processes" else "0"
    command = [sys.executable, offline, model, str(KV_BLOCKS), mode, "{}"]
    with _started(command, directory, VLLM_ENABLE_V1_MULTIPROCESSING=apart) as process:
        for command in (None, {"do": "generate", "prompts": 12, "tokens": 100, "times": 2}):
            if command:
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
            assert process.stdout.readline(), "vLLM ended"
        yield


@contextlib.contextmanager
def _started(command, directory, **environment):
    environment = {**os.environ, **tiny_llama.ENVIRONMENT, "ULLAGE_DIR": str(directory), **environment}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _save(directory, prefix):
    """Keep the segments in ``directory``, without what they say of this machine."""
    copies = Path(tempfile.mkdtemp(dir=directory))
    for path in sorted(directory.glob(f"*{layout.SUFFIX}")):
        identity = reader.read(path).identity
        neutral = {key: value for key, value in NEUTRAL.items() if key in identity}
        copy = place(copies, path.read_bytes(), **neutral)
        copy.close()
        name = f"{prefix}-{identity['role']}" if prefix == "vllm" else prefix
        (CORPUS / f"{name}.ullage.gz").write_bytes(gzip.compress(copy.path.read_bytes(), mtime=0))
        print(f"{name}: {identity | neutral}")


if __name__ == "__main__":
    main()
