"""Reads docstrings as the reference shows them."""

import griffe


class Examples(griffe.Extension):
    """Makes `Example:`, as this library heads doctests, the heading that Griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_):
        """Renames the heading in the docstring of an object, if it has one."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
