"""Claims on sizes from a view of a runner, one module a subject: each is a function ``claim(view, sizes)``."""
