"""Engines that ullage knows: which of their functions to watch, and what to read there."""
