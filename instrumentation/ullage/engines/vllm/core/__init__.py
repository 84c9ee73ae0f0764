"""vLLM's engine core and its clients: lifecycle, scheduler, encoder cache, structured output, transfers."""
