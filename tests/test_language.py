"""Checks the words of docstrings, comments, messages and pages against the house style."""

import ast
import functools
import pathlib
import re

from tests.marks import together

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("tff_pfl", "programs", "configs", "examples", "benchmarks", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")

# Phrases of former texts that had to be read twice, and plain words for them.
PHRASES = {
    r"\bbe (it|they) ": "whether",
    r"\b(is|are|was|were) none\b": "does not exist",
    r"\bothers than\b": "other ... than",
    r"\bof one's own\b": "your own",
    r"\bin the place of\b": "instead of",
    r"\bcomes? to nothing\b": "has no effect, is lost",
    r"\b(to be|can be|are|is) had\b": "is available",
    r"\bwho(so)?ever\b": "anybody who",
    r"\bis asked of\b": "is read from",
    r"\bwithout a word\b": "silently",
    r"\bfor want of\b": "because ... is missing",
    r"\bgoes? on (with|from|by|where)\b": "continues, resumes",
    r"\brooms?\b": "package",
    r"(^|[.:] )(Of|That of|Those of|What|Who|Whose) [a-z`]": "a noun or a verb first",
}
COMMENT = re.compile(r"(?:^|\s)#[# ]*(.*)")
VERB = re.compile(r"[A-Z][a-z]+(s|es) ")
NO_VERBS = ("This ", "Its ", "Always ", "Numbers ", "Rounds ", "Bytes ", "Images ", "Names ")


@functools.cache
def modules():
    """Returns the path, the source and the syntax tree of each module."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = [path.read_text() for path in paths]
    return [
        (path.relative_to(ROOT), source, ast.parse(source))
        for path, source in zip(paths, sources, strict=True)
    ]


@functools.cache
def texts():
    """Returns each docstring, string and comment of the code, and each line of the pages."""
    return list(_texts())


def _texts():
    for path, source, tree in modules():
        if path.name == "test_language.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path}:{node.lineno}", re.sub(r"\s+", " ", node.value)
        for number, line in enumerate(source.splitlines(), start=1):
            if comment := COMMENT.search(line):
                yield f"{path}:{number}", comment[1]
    for page in PAGES:
        for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
            yield f"{page}:{number}", line


@together("phrase", PHRASES)
def test_no_text_has_a_phrase_that_must_be_read_twice(phrase):
    found = [f"{place}: {text[:100]}" for place, text in texts() if re.search(phrase, text)]
    assert not found, f"Write: {PHRASES[phrase]}."


def functions():
    """Yields the functions of the package that are not properties, with their docstrings."""
    for path, _, tree in modules():
        if path.parts[0] != "tff_pfl":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                docstring = ast.get_docstring(node)
                if docstring and "property" not in decorators:
                    yield f"{path}:{node.lineno}", docstring


def test_docstrings_of_functions_start_with_a_verb():
    def has_verb(docstring):
        if docstring.startswith(("See ", "Like ", "Does ")):
            return True
        return VERB.match(docstring) and not docstring.startswith(NO_VERBS)

    assert not [f"{place}: {text[:80]}" for place, text in functions() if not has_verb(text)]
