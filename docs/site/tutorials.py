"""Makes pages of the notebooks, with the outputs of their cells.

A notebook is executed once for each state of its text and of the library; `build/notebooks/` keeps
the outcome.
"""

import ast
import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2
import jupytext
import nbclient
import nbformat
from nbconvert import MarkdownExporter

from docs.site.links import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
CACHE = ROOT / "build" / "notebooks"
_SECONDS_A_CELL = 600
_WIDGET = "application/vnd.jupyter.widget-view+json"
_TEMPLATE = """
{%- extends "markdown/index.md.j2" -%}
{%- macro shown(text) %}
``` {.text .output}
{{ text | strip_ansi | trim }}
```
{% endmacro -%}
{%- block stream %}{{ shown(output.text) }}{% endblock -%}
{%- block data_text scoped %}{{ shown(output.data["text/plain"]) }}{% endblock -%}
"""


def pages(execute: bool) -> dict[str, str | bytes]:
    """Returns the page of each notebook, its pictures, and the notebook itself to download.

    Args:
        execute: Whether to execute notebooks that have changed. Otherwise cells that have changed
            have no outputs.
    """
    scripts = sorted(NOTEBOOKS.glob("*.py"))
    if execute:
        digests = _digests(scripts)  # before the threads, as Python 3.11 parses in one at a time
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            notebooks = list(pool.map(_executed, scripts, digests))
    else:
        notebooks = map(_last, scripts)
    made = [_page(script.stem, book) for script, book in zip(scripts, notebooks, strict=True)]
    return {name: content for files in made for name, content in files.items()}


def _page(name, notebook):
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":  # progress bars are widgets, which a page cannot show
            cell.outputs = [it for it in cell.outputs if _WIDGET not in it.get("data", {})]
    resources = {"unique_key": name, "output_files_dir": name}
    text, resources = _exporter().from_notebook_node(notebook, resources)
    title, _, rest = text.lstrip().partition("\n")
    download = f"[Download this notebook]({name}.ipynb), or [open it in your clone](index.md)."
    files = resources["outputs"] | {f"{name}.ipynb": nbformat.writes(notebook)}
    files[f"{name}.md"] = f"{title}\n\n{download}\n{rest}"
    return {f"tutorials/{file}": content for file, content in files.items()}


def _exporter() -> MarkdownExporter:
    """Returns an exporter that tells outputs from code, by a class of their own."""
    templates = jinja2.DictLoader({"outputs.md.j2": _TEMPLATE})
    return MarkdownExporter(
        extra_loaders=[templates],
        template_file="outputs.md.j2",
        preprocessors=["nbconvert.preprocessors.CoalesceStreamsPreprocessor"],
    )


def _executed(script: Path, digest: str):
    kept = CACHE / f"{script.stem}-{digest}.ipynb"
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = jupytext.read(script)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=_SECONDS_A_CELL, resources={"metadata": {"path": folder}}
        )
        client.execute(env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{script.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook


def _last(script: Path):
    notebook = jupytext.read(script)
    for kept in CACHE.glob(f"{script.stem}-*.ipynb"):
        cells = nbformat.read(kept, as_version=4).cells
        outputs = {cell.source: cell.outputs for cell in cells if cell.cell_type == "code"}
        for cell in notebook.cells:
            if cell.source in outputs:
                cell.outputs = outputs[cell.source]
    return notebook


def _digests(scripts: Sequence[Path]) -> list[str]:
    """Returns digests of each notebook with the library's code, without docstrings."""
    library = "".join(_code(path) for path in sorted((ROOT / "tff_pfl").rglob("*.py")))
    texts = (script.read_text() + library for script in scripts)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)
