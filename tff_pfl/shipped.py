"""Finds the programs and configs that come with the library, in a clone or in a wheel."""

import os
import pathlib


def shipped(folder: str) -> pathlib.Path:
    """Returns the folder `programs` or `configs`."""
    package = pathlib.Path(__file__).parent
    in_wheel = package / folder
    return in_wheel if in_wheel.is_dir() else package.parent / folder


def config_file(source: str | os.PathLike) -> str:
    """Returns FILE or FILE:CHOICE of a config or a study, with the path of the file.

    A file that does not exist, such as `digits.py`, is looked for among those of the library.
    """
    file, colon, choice = os.path.expanduser(source).partition(":")
    ours = shipped("configs") / file.removeprefix("configs/")
    if not os.path.exists(file) and ours.is_file():
        file = str(ours)
    return file + colon + choice
