"""The generators of docs/results and of docs/reference/backends.md."""
