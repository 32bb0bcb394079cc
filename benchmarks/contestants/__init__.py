"""The same work by other frameworks, in their own Pythons: what `side_by_side.py` runs.

Each `with_NAME.py` is a program for a Python that has that framework; `common.py` and
`torch_parts.py` are for these alone, and need nothing of this library.
"""
