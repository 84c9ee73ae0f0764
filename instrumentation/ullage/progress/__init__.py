"""Steps of an engine: how many, where in one, and which are sampled."""
