"""Runs a program of the library, as `programs/NAME.py` of a clone does.

    tff-pfl NAME [--FLAG=VALUE ...]        or: python -m tff_pfl NAME ...

`tff-pfl NAME --help` lists the flags of a program.
"""

import ast
import runpy
import sys

from tff_pfl.arguments.names import check_names
from tff_pfl.shipped import shipped


def main() -> None:
    """Runs the program that the first argument names, and exits with its exit code."""
    files = {file.stem: file for file in sorted(shipped("programs").glob("*.py"))}
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        for own, file in files.items():
            says = ast.get_docstring(ast.parse(file.read_text())) or ""
            print(f"  {own:12} {says.splitlines()[0]}")
        return
    try:
        check_names("program", [name], files)
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.argv = [str(files[name]), *arguments]
    runpy.run_path(str(files[name]), run_name="__main__")


if __name__ == "__main__":
    main()
