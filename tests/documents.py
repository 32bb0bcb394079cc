"""Reads the documents: their code, their commands, and the names in them."""

import ast
import pathlib
import re
from collections.abc import Iterator

from tests.runs import ROOT
from tff_pfl.analysis import command_line

GUIDES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *GUIDES]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def python_blocks(document: pathlib.Path) -> Iterator[tuple[str, str]]:
    """`(file, code)` of each block of Python; its first line names the file, if it is one."""
    for language, code in _FENCE.findall(document.read_text()):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", code)
            yield (named[1] if named else ""), code


def commands(document: pathlib.Path) -> list[str]:
    """The commands of the indented blocks, each in one line."""
    text = _FENCE.sub("", document.read_text())
    lines = re.findall(r"^    (?! )((?:.*\\\n)*.*)", text, re.MULTILINE)
    return [re.sub(r"\s*\\\n\s*", " ", line).partition(" #")[0].strip() for line in lines]


def statements(code: str) -> str:
    """The code without its comments and the docstring of the module."""
    tree = ast.parse(code)
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    return ast.unparse(tree)


def flags_of(program: pathlib.Path) -> set[str]:
    """The flags that a program defines, in its own file or in those that programs share."""
    texts = [program.read_text(), (ROOT / "tff_pfl" / "runtime" / "flags.py").read_text()]
    if "define_import_flags" in texts[0]:
        texts.append((ROOT / "tff_pfl" / "experiment" / "config" / "flags.py").read_text())
    if "command_line" in texts[0]:
        texts += (f'flags.DEFINE_x("{name}"' for name in (*command_line.OPTIONS, "output"))
    names = re.findall(r'flags\.DEFINE_\w+\(\s*"(\w+)"', "".join(texts))
    return {"config", "help", "verbosity", *names}
