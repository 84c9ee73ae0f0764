"""Adapters that make a runner view of vLLM's objects: with the probes, all that knows vLLM's attributes."""
