"""Runs the same work in other frameworks, with their own Pythons, for `side_by_side.py`.

Each `with_NAME.py` is a program for a Python that has the framework. Only these programs use
`common.py` and `torch_parts.py`, which do not need this library.
"""
