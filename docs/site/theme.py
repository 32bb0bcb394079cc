"""Keeps the navigation of the theme on screens that are narrower than its own limit.

The theme, Material for MkDocs, makes the navigation a drawer below 1,220 pixels, as its style
sheets and its script say. Here it does so below 1,000 pixels.
"""

from pathlib import Path

_WIDTHS = {"76.25em": "62.5em", "76.234375em": "62.484375em"}  # from where on, and up to where


def keep_navigation(site: Path) -> None:
    """Replaces the width in the theme's files of a built site.

    Raises:
        ValueError: The theme has no such width.
    """
    files = [*site.glob("assets/stylesheets/*.css"), *site.glob("assets/javascripts/bundle*.js")]
    replaced = 0
    for file in files:
        text = file.read_text()
        for width, other in _WIDTHS.items():
            replaced += text.count(width)
            text = text.replace(width, other)
        file.write_text(text)
    if not replaced:
        raise ValueError("The theme has other widths than docs/site/theme.py replaces.")
