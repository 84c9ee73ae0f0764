"""Prints segments and post-mortems. Standard library only: it must run where nothing else does."""
