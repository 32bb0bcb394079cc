"""Measures the structure of this library: `python -m benchmarks.structure [CHECKOUT ...]`.

Prints a table with a column for each checkout, and for the last one the lines and the code of each
package in `tff_pfl/`, and the packages that it imports. Code lines have neither comments nor
docstrings nor blanks.
"""

import ast
import collections
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator

_RECORD = ("experiment", "config", "analysis")
_QUIET = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class Checkout:
    """The Python files of a checkout, parsed once."""

    def __init__(self, root: str):
        """Reads the files."""
        self.root = pathlib.Path(root)
        self.package = dict(self._parsed("tff_pfl"))
        self.tests = dict(self._parsed("tests"))

    def _parsed(self, folder: str) -> Iterator[tuple[str, tuple[str, ast.Module]]]:
        for path in sorted((self.root / folder).rglob("*.py")):
            text = path.read_text()
            yield path.relative_to(self.root).as_posix(), (text, ast.parse(text))

    def packages(self) -> dict[str, list[str]]:
        """Returns the files of each package; files in the root are a package of their own."""
        found = collections.defaultdict(list)
        for path in self.package:
            found[_room(path)].append(path)
        return dict(found)

    def arrows(self) -> dict[str, set[str]]:
        """Returns the packages that each package imports."""
        modules = {
            path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
            for path in self.package
        }
        found = collections.defaultdict(set)
        for path, (_, tree) in self.package.items():
            for node in ast.walk(tree):
                for name in _imported(node):
                    target = modules.get(name) or modules.get(name.rpartition(".")[0])
                    if target and _room(target) not in (_room(path), "(root)"):
                        found[_room(path)].add(_room(target))
        return dict(found)

    def circles(self) -> list[tuple[str, str]]:
        """Returns pairs of packages that import each other."""
        arrows = self.arrows()
        return [(a, b) for a in arrows for b in arrows[a] if a < b and a in arrows.get(b, ())]

    def measures(self) -> dict[str, float | str]:
        """Returns the proportions and counts, by name."""
        packages, code = (
            self.packages(),
            {path: _code(text) for path, (text, _) in self.package.items()},
        )
        state = sum(code[path] for path in packages["algorithms"])
        record = sum(code[path] for package in _RECORD for path in packages.get(package, ()))
        classes = [
            n.name
            for _, tree in self.package.values()
            for n in ast.walk(tree)
            if isinstance(n, ast.ClassDef)
        ]
        runs = [name for name in classes if re.search("Run(?![a-z])|Runs", name)]
        lonely, lines = self._called_once()
        tests = "\n".join(text for text, _ in self.tests.values())
        return {
            "lines of the package": sum(_lines(text) for text, _ in self.package.values()),
            "lines of tests": sum(_lines(text) for text, _ in self.tests.values()),
            "modules": len(self.package),
            "packages": len(packages),
            "circles between packages": len(self.circles()),
            "record : state, code lines": round(record / state, 2),
            'classes with "Run" in their name': f"{len(runs)}: {', '.join(sorted(runs))}",
            "parameters of train": self._parameters("train", "experiment/loop.py"),
            "parameters of compare": self._parameters("compare", "analysis/comparison.py"),
            "files with evaluation.synthetic": self._files(r"\bsynthetic\b"),
            "files with directions": self._files(r"\bdirections\b"),
            "mentions of directions": self._mentions(r"\bdirections\b"),
            "files with clients_per_call": self._files(r"\bclients_per_call\b"),
            "isinstance of a method's aggregator outside of it": self._mentions(
                r"isinstance\([^)]*(BranchMeanFactory|CountedFactory)"
            ),
            "private functions called from one place": f"{lonely} ({lines} lines)",
            "test code : code": round(
                sum(_code(text) for text, _ in self.tests.values()) / sum(code.values()), 2
            ),
            "patches in tests": len(
                re.findall(r"\bmonkeypatch\.setattr|\.patch\.object|patch\.setattr", tests)
            ),
            "tests that touch private names": sum(
                _touches_private_names(n)
                for _, tree in self.tests.values()
                for n in ast.walk(tree)
                if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
            ),
            "test functions": len(re.findall(r"^\s*def test_", tests, re.MULTILINE)),
        }

    def _called_once(self) -> tuple[int, int]:
        """Counts private functions that are named in one other place, and their lines."""
        uses, functions = collections.Counter(), []
        for text, tree in self.package.values():
            uses.update(re.findall(r"\b_[a-z]\w*", text))
            functions += [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        private = [f for f in functions if re.fullmatch(r"_[a-z]\w*", f.name) and uses[f.name] == 2]
        return len(private), sum(f.end_lineno - f.lineno + 1 for f in private)

    def _parameters(self, name: str, path: str) -> int:
        _, tree = self.package[f"tff_pfl/{path}"]
        (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
        return len([*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs])

    def _files(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, text)) for text, _ in self.package.values())

    def _mentions(self, pattern: str) -> int:
        return sum(len(re.findall(pattern, text)) for text, _ in self.package.values())


def _room(path: str) -> str:
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else "(root)"


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tff_pfl"):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("tff_pfl."))


def _touches_private_names(test: ast.FunctionDef) -> bool:
    """Returns whether a test reads or patches a private name, but those of named tuples."""
    public = ("_asdict", "_fields", "_make", "_replace", "_repr_html_", "_repr_png_")
    nodes = list(ast.walk(test))
    read = [n.attr for n in nodes if isinstance(n, ast.Attribute) and not _is_own(n.value)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    patches = [call.args[1:2] for call in calls if call.func.attr in ("setattr", "object")]
    patched = [n.value for [n] in filter(None, patches) if isinstance(n, ast.Constant)]
    names = [name for name in [*read, *patched] if isinstance(name, str) and name not in public]
    return any(re.match("_[a-z]", name) for name in names)


def _is_own(value: ast.AST) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _lines(text: str) -> int:
    return text.count("\n")


def _code(text: str) -> int:
    """Returns the number of lines with code, without docstrings."""
    lines, before = set(), tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and before in (
            *(tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT),
        )
        if token.type not in (*_QUIET, tokenize.ENDMARKER) and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        before = token.type
    return len(lines)


def main(roots: list[str]) -> None:
    """Prints the measures of checkouts side by side, and the packages of the last one."""
    checkouts = [Checkout(root) for root in roots or ["."]]
    measured = [checkout.measures() for checkout in checkouts]
    for name in measured[-1]:
        print(f"{name:52}", *(f"{found[name]!s:>14}" for found in measured), sep=" | ")
    last = checkouts[-1]
    print("\npackage, lines, code lines, packages that it imports")
    arrows = last.arrows()
    for package, paths in sorted(last.packages().items()):
        texts = [last.package[path][0] for path in paths]
        numbers = sum(map(_lines, texts)), sum(map(_code, texts))
        imported = " ".join(sorted(arrows.get(package, ())))
        print(f"{package:12} {numbers[0]:6} {numbers[1]:6}  {imported}")


if __name__ == "__main__":
    main(sys.argv[1:])
