"""``python -m ullage_sidecar``: the same as ``ullage``."""

from ullage_sidecar.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
