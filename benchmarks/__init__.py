"""Measures the speed of this library's rounds, of other frameworks, and of a GPU."""
