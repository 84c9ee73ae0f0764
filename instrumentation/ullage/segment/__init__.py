"""The segment: a small memory-mapped file that outlives the process which writes it."""
