"""Measures speed: rounds of this library, the same work by other frameworks, and a GPU."""
