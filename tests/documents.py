"""Reads the code, the commands and the flags in documents."""

import ast
import pathlib
import re
from collections.abc import Iterator

from tests.runs import ROOT
from tff_pfl.config import command_line

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *GUIDES]
DOCUMENTS += sorted((ROOT / "examples").glob("*/README.md"))
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))
_FLAG = r'(?:flags\.DEFINE_\w+\(|add_argument\()\s*"(?:--)?(\w+)"'
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def python_blocks(document: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields `(file, code)` for each Python block, with `""` for a block that is not a file."""
    for language, code in _FENCE.findall(document.read_text()):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", code)
            yield (named[1] if named else ""), code


def commands(document: pathlib.Path) -> list[str]:
    """Returns the commands of the indented blocks, each as one line."""
    text = _FENCE.sub("", document.read_text())
    lines = re.findall(r"^    (?! )((?:.*\\\n)*.*)", text, re.MULTILINE)
    return [re.sub(r"\s*\\\n\s*", " ", line).partition(" #")[0].strip() for line in lines]


def statements(code: str) -> str:
    """Returns the code without its comments and its module docstring."""
    tree = ast.parse(code)
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    return ast.unparse(tree)


def flags_of(program: pathlib.Path) -> set[str]:
    """Returns the flags that a program defines, in its file or in files that programs share."""
    texts = [program.read_text(), (ROOT / "tff_pfl" / "runtime" / "flags.py").read_text()]
    if "define_import_flags" in texts[0]:
        texts.append((ROOT / "tff_pfl" / "config" / "flags.py").read_text())
    if "command_line" in texts[0]:
        texts += (f'flags.DEFINE_x("{name}"' for name in (*command_line.OPTIONS, "output"))
    return {"config", "help", "verbosity", *re.findall(_FLAG, "".join(texts))}


def required_flags_of(program: pathlib.Path) -> set[str]:
    """Returns the flags of its file without which a program refuses to start."""
    return set(re.findall(_FLAG + r"[^)]*required=True", program.read_text()))
