"""vLLM's attention backends: what a batch brings, and what was allocated for it."""
