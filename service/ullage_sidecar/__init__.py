"""The sidecar: reads segments, serves metrics, raises warnings, and answers after the engine is dead."""
