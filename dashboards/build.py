"""Write the Grafana dashboards, grafana/*.json.

python dashboards/build.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards import buffer, fleet, process

BOARDS = (fleet.BOARD, process.BOARD, buffer.BOARD)


def main(directory: Path) -> None:
    """Write each dashboard into ``directory``; the same bytes at every call."""
    directory.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        built = board.build()
        assert built.uid is not None
        name = built.uid.removeprefix("ullage-")
        text = JSONEncoder(sort_keys=True, indent=1).encode(built)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "grafana")
