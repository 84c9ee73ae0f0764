"""Real engines on CPU: one per mode, started when the first test asks for it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from harness import ROOT, missing, until

sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
import contextlib

import models
import tiny_llama

from ullage.segment import reader


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def vllm():
    """Tell why there is no vLLM, if there is none."""
    if importlib.util.find_spec("vllm") is None:
        missing("vLLM for CPU is not installed: see .venv/no-engine")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The tiny model."""
    return tiny_llama.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def spelling(model):
    """The tiny model with a tokenizer: a word for each of its tokens."""
    models.write_tokenizer(model)
    yield model
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()


@pytest.fixture(scope="session")
def features():
    """Arguments of an engine that decodes speculatively with ngrams, and can spell."""
    return {
        "skip_tokenizer_init": False,
        "enable_prefix_caching": True,
        "max_model_len": -1,
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        },
    }


class Engine:
    """A process of vLLM with a directory for its segments."""

    def __init__(self, command, *, hook, directory=None, **environment):
        self.directory = directory or Path(tempfile.mkdtemp(prefix="ullage-engine-", dir="/dev/shm"))
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        switch = {"ULLAGE_DIR": str(self.directory)} if hook else {"ULLAGE_DISABLE": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
            env={**os.environ, **tiny_llama.ENVIRONMENT, **switch, **environment},
        )

    def output(self):
        """What it has logged so far."""
        self.log.seek(0)
        return self.log.read()[-5000:]

    def end(self):
        """Kill it with all its processes, and forget it."""
        if self.process.poll() is None or self.process.stdin:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Offline(Engine):
    """``LLM``, driven by commands."""

    def __init__(self, model, blocks, *, in_process, hook=True, arguments=None, **environment):
        mode = "in-process" if in_process else "processes"
        super().__init__(
            [
                sys.executable,
                str(Path(__file__).parent / "offline.py"),
                str(model),
                str(blocks),
                mode,
                json.dumps(arguments or {}),
            ],
            hook=hook,
            VLLM_ENABLE_V1_MULTIPROCESSING="0" if in_process else "1",
            **environment,
        )
        assert self._answer() == "ready"

    def tell(self, do, **arguments):
        """Have it do something, without waiting."""
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def ask(self, do, **arguments):
        """Have it do something, and return its answer."""
        self.tell(do, **arguments)
        return self._answer()

    def answer(self):
        """Return the answer to what it was told."""
        return self._answer()

    def stop(self):
        """End it in order."""
        self.tell("stop")
        self.process.wait(timeout=120)

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, self.output()
        return json.loads(line)


class Forking(Engine):
    """A vLLM that is imported once, and forks: see ``forking.py``."""

    def __init__(self):
        self.socket = str(Path(tempfile.mkdtemp(prefix="ullage-fork-", dir="/dev/shm")) / "socket")
        super().__init__([sys.executable, str(Path(__file__).parent / "forking.py"), self.socket], hook=False)
        assert self.process.stdout.readline() == "listening\n", self.output()

    def fork(self, directory=None, **environment):
        """Start a child; it is watched if there is a ``directory`` for its segments."""
        switch = {"ULLAGE_DIR": str(directory), "ULLAGE_DISABLE": ""} if directory else {"ULLAGE_DISABLE": "1"}
        return Fork(self, {"ULLAGE_STRICT": "0", **switch, **environment})

    def end(self):
        """Kill it with all its children, and forget it."""
        super().end()
        shutil.rmtree(Path(self.socket).parent)


class Fork:
    """A child of ``Forking``, in the middle of a conversation."""

    def __init__(self, parent, environment):
        self._parent = parent
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(parent.socket)
        self._lines = self._socket.makefile("rw")
        self._say(environment)

    def ask(self, do, **arguments):
        """Have it do something, and return its answer."""
        self._say({"do": do, **arguments})
        line = self._lines.readline()
        assert line, self._parent.output()
        return json.loads(line)

    def end(self):
        """Have it shut its engines down, and wait for its end."""
        self._socket.shutdown(socket.SHUT_WR)
        rest = self._lines.read()
        self._lines.close()
        self._socket.close()
        assert rest == ""

    def _say(self, document):
        self._lines.write(json.dumps(document) + "\n")
        self._lines.flush()


class Server(Engine):
    """The OpenAI-compatible server."""

    def __init__(self, model, blocks, *, hook=True, directory=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = {
            "model": model,
            "served-model-name": "tiny",
            "num-gpu-blocks-override": blocks,
            "host": "127.0.0.1",
            "port": self.port,
            **{name.replace("_", "-"): value for name, value in tiny_llama.ARGUMENTS.items()},
        }
        arguments = []
        for name, value in options.items():
            arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        super().__init__(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments], hook=hook, directory=directory
        )
        until(self._healthy, 240, "the server's health")

    def _healthy(self):
        assert self.process.poll() is None, self.output()
        try:
            self.get("/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def get(self, path, body=None):
        """Return a page, or the answer to a JSON document."""
        url = f"http://127.0.0.1:{self.port}{path}"
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()

    def complete(self, prompt, tokens):
        """Return the tokens that follow a prompt of tokens."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return json.loads(self.get("/v1/completions", body))["choices"][0]["token_ids"]


@pytest.fixture(scope="session")
def start_offline(model):
    """Start an Offline engine; all are gone at the end."""
    started = []

    def start(blocks, **options):
        started.append(Offline(model, blocks, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def start_server(model):
    """Start a Server; all are gone at the end."""
    started = []

    def start(blocks, **options):
        started.append(Server(model, blocks, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def forking():
    """A vLLM that forks."""
    parent = Forking()
    yield parent
    parent.end()


@pytest.fixture(scope="module")
def make_directory():
    """Make an empty directory on tmpfs; all are gone at the end."""
    made = []

    def make():
        made.append(Path(tempfile.mkdtemp(prefix="ullage-engine-", dir="/dev/shm")))
        return made[-1]

    yield make
    for one in made:
        shutil.rmtree(one, ignore_errors=True)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Return where the tiny model of a name is; it is made when it is first asked for."""
    directory, made = tmp_path_factory.mktemp("models"), {}

    def make(name):
        if name not in made:
            made[name] = models.make(name, directory)
        return made[name]

    return make


class Classes:
    """A process that has imported vLLM's classes, and runs programs with them."""

    def __init__(self):
        environment = {key: value for key, value in os.environ.items() if key != "ULLAGE_DIR"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "classes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, **tiny_llama.ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"},
        )

    def run(self, directory, code, errors):
        """Return what ``code`` said, and what its segment says then; ``errors`` of ours were expected."""
        self.process.stdin.write(json.dumps({"directory": str(directory), "code": code}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "said" in answer, answer["failed"]
        (path,) = directory.glob("*.ullage")
        seen = reader.read(path)
        assert seen.process.hook_errors == errors
        return answer["said"], seen


@pytest.fixture(scope="session")
def _classes():
    process = Classes()
    yield process
    process.process.stdin.close()
    process.process.wait(timeout=60)
    process.process.stdout.close()


@pytest.fixture
def run_classes(_classes, segments):
    """Run a program on vLLM's own classes: ``run_classes(code)``; see ``classes.py`` for the names that it has."""
    runs = itertools.count()

    def run(code, errors=0):
        directory = segments / str(next(runs))
        directory.mkdir()
        return _classes.run(directory, code, errors)

    return run
