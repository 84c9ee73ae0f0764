"""What tests of the hook share."""

from __future__ import annotations

import pytest

from ullage.segment import reader


@pytest.fixture
def run_engine(program, segments):
    """Run a program on an engine that is not there; return what its segment says then. With an argument it dies."""

    def run(engine, code, *arguments):
        running = program(engine + code, *arguments)
        if arguments:
            running.failure()
        else:
            running.finish()
        (path,) = segments.glob("*.ullage")
        seen = reader.read(path)
        assert seen.process.hook_errors == 0
        return seen

    return run
