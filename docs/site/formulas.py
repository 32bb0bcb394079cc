"""Writes the formulas of docstrings with Greek letters and mathematical signs.

Pages open from the disk, without a network, so that no program of others sets formulas.
"""

import re
from collections.abc import Container

_NAMES = "alpha beta gamma delta eps eta theta kappa lambda mu nu xi pi rho sigma tau phi omega"
_SIGN_OF = dict(zip(_NAMES.split(), "αβγδεηθκλμνξπρστφω", strict=True))
_SIGN_OF |= {"Delta": "Δ", "sum": "Σ", "grad": "∇"}
_OPERATORS = {"<-": "←", "->": "→", ">=": "≥", "<=": "≤", "!=": "≠", "||": "‖", "{i in": "{i ∈"}
_OPERATORS |= {"^2": "²", "^T": "ᵀ"}
_IDENTIFIER = re.compile(r"[A-Za-z]\w*")
_ASSIGNMENT = re.compile(r" (?:<-|=) ")


def typeset(docstring: str, options: Container[str]) -> str:
    """Returns a docstring with signs in its indented blocks and in its code between backticks.

    Args:
        docstring: The text, without a common indentation.
        options: Names of options, which stay as they are where they stand alone in backticks.
    """
    lines = docstring.splitlines()
    columns = [None, *map(_columns, lines), None]
    text = []
    for line, before, own, after in zip(lines, columns, columns[1:], columns[2:], strict=False):
        text.append(_block(line, own[1] if own and own in (before, after) else 0))
    return in_code("\n".join(text), options)


def in_code(text: str, options: Container[str]) -> str:
    """Returns a text with signs in its code between backticks; see `typeset`."""

    def signs(match):
        return match[0] if match[0].strip("`") in options else _signs(match[0])

    return re.sub(r"`[^`\n]+`", signs, text)


def _columns(line: str) -> tuple[int, int] | None:
    """Returns where the left side of an assignment begins and ends, after a word as `client`."""
    found = re.match(r" {4,}(?:(?:down|client|up|server) +)?", line)
    assignment = _ASSIGNMENT.search(line)
    if not found or not assignment:
        return None
    start, end = found.end(), assignment.start()
    return None if "  " in line[start:end].rstrip() else (start, end)


def _block(line: str, column: int) -> str:
    """Returns a line of an indented block with signs; columns stay where they are."""
    if not line.startswith("    "):
        return line
    parts = [line[:column], *re.split(r"(?<=\S)(?= {3,}\S)", line[column:])]
    *first, last = parts
    return "".join(_signs(part).ljust(len(part)) for part in first) + _signs(last)


def _signs(code: str) -> str:
    for operator, sign in _OPERATORS.items():
        code = code.replace(operator, sign)
    return _IDENTIFIER.sub(lambda match: _identifier(match[0]), code)


def _identifier(name: str) -> str:
    """Returns a symbol with signs, such as `α_ij` or `Σ_i`; other names stay as they are."""
    parts = name.split("_")
    signs = [re.sub("^[A-Za-z]+", lambda m: _SIGN_OF.get(m[0], m[0]), part) for part in parts]
    is_symbol = parts[0] in ("sum", "grad", "min") or all(
        sign != part or 0 < len(part) <= 2 for sign, part in zip(signs, parts, strict=True)
    )
    return "_".join(signs) if is_symbol else name
