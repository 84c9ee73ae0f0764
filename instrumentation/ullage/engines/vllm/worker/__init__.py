"""vLLM's workers: model runners and what their steps fill."""
