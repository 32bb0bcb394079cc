"""Executes the notebooks, as Jupyter does."""

import ast
import importlib

import jupytext
import nbclient
import nbformat
import pytest

from docs.site import tutorials
from tests.documents import NOTEBOOKS
from tests.runs import ROOT

SECONDS = 300  # for a cell, on a busy machine


def names(path):
    return path.stem


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_notebook_runs_without_warnings_and_shows_pictures(path, tmp_path, monkeypatch):
    """Executes it in an empty folder; a notebook takes a minute on two quiet cores."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # some CPUs warn of slow convolutions
    notebook = jupytext.read(path)
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_names_of_the_package_in_a_notebook_exist(path):
    """Checks each name that is imported from the package, and each attribute of these."""
    nodes, imported = list(ast.walk(ast.parse(path.read_text()))), {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "tff_pfl":
            module = importlib.import_module(node.module)
            imported |= {a.asname or a.name: getattr(module, a.name) for a in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = imported.get(node.value.id)
            assert value is None or hasattr(value, node.attr), ast.unparse(node)


def test_page_of_a_notebook_has_a_title_and_offers_the_notebook():
    pages = tutorials.pages(execute=False)
    for path in NOTEBOOKS:
        title, _, link, *_ = pages[f"tutorials/{path.stem}.md"].splitlines()
        assert title.startswith("# ") and f"]({path.stem}.ipynb)" in link
        offered = nbformat.reads(pages[f"tutorials/{path.stem}.ipynb"], as_version=4)
        written = [cell.source for cell in jupytext.read(path).cells]
        assert [cell.source for cell in offered.cells] == written
