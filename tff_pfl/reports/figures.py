"""Pictures as files."""

import os


def save(figure, path: str | os.PathLike) -> None:
    """Saves a Matplotlib figure, in the format of the path's ending; makes the folder."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path, dpi=120)
