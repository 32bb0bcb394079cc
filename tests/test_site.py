"""Tests that the site has all pages, and that it builds."""

import os
import re
import subprocess
import sys

import pytest

from docs.site import api, examples, formulas, links, methods
from tests.documents import GUIDES, NOTEBOOKS
from tests.runs import ROOT
from tff_pfl.algorithms import ALGORITHMS


def test_navigation_lists_all_guides_tutorials_and_results():
    pages = re.findall(r"- (?:[^:\n]*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    files = [*GUIDES, *NOTEBOOKS, *(ROOT / "docs" / "results").glob("*.md")]
    shown = {links.page_of(str(path.relative_to(ROOT))) for path in files}
    assert shown - set(pages) == set()


@pytest.mark.parametrize("folder", ["guides", "results"])
def test_indices_list_each_page_with_the_minutes_to_read_it(folder):
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    index = (ROOT / "docs" / folder / "index.md").read_text()
    listed = re.findall(r"\[\*\*[^]]*\*\*\]\((\w+)\.md\) · (\d+) min", index)
    assert sorted(name for name, _ in listed) == [p.stem for p in pages if p.stem != "index"]
    for name, minutes in listed:
        words = len((ROOT / "docs" / folder / f"{name}.md").read_text().split())
        assert abs(int(minutes) - words / 200) <= 1, name


def test_index_of_methods_lists_each_algorithm_once():
    text = (ROOT / "docs" / "methods" / "index.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == list(ALGORITHMS)


def test_readme_lists_methods_as_their_index_does():
    index, readme = (
        re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", (ROOT / page).read_text(), re.MULTILINE)
        for page in ("docs/methods/index.md", "README.md")
    )
    assert set(readme) < set(index) and len(readme) == 6


def test_table_of_other_libraries_names_methods_that_exist():
    text = (ROOT / "docs" / "methods" / "others.md").read_text()
    named = re.findall(r"^\|[^|]*\|[^|]*\|[^|]*\| (`[^|]*) \|$", text, re.MULTILINE)
    assert len(named) > 40
    assert {name for cell in named for name in re.findall(r"`([a-z_]+)`", cell)} <= set(ALGORITHMS)


def test_links_to_files_point_to_pages():
    text = "[a](docs/results/digits.md) [b](tff_pfl/arguments/names.py#L1) [c](https://a.b)\n```\n[d](e)\n```\n"
    assert links.rewritten(text, "index.md") == (
        "[a](results/digits.md) [b](source/tff_pfl/arguments/names.py.md#L1) [c](https://a.b)\n"
        "```\n[d](e)\n```\n"
    )
    found = links.sources({"results/digits.md": "[a](../../configs)"})
    assert {"source/configs.md", "source/configs/digits.py.md"} <= set(found)


@pytest.mark.thorough
def test_packages_that_offer_no_names_show_their_modules():
    assert "\n::: tff_pfl.arguments.ranges\n" in api.pages()["api/tff_pfl.arguments.md"]


def test_all_options_of_methods_have_a_meaning():
    missing = {
        (name, option)
        for name in ALGORITHMS
        for option in ALGORITHMS.parameters(name)
        if not methods.meanings_of(name).get(option)
    }
    assert not missing


def test_all_methods_say_when_to_use_them_and_what_they_cost():
    listed = {method.names[0]: set(method.advice) for method in methods.listed()}
    text = (ROOT / "docs" / "methods" / "when.md").read_text()
    assert re.findall("^## `(.*)`$", text, re.MULTILINE) == list(listed)
    assert set(map(frozenset, listed.values())) == {frozenset(["Use it", "Not", "Cost"])}


def test_formulas_have_signs_and_keep_their_columns():
    docstring = """\
With `alpha`, and the rate `eta_alpha` of `alpha_ij`, `lambda_` and alpha:

    client  theta <- theta - eta grad loss(theta; b)      (mu >= 0)
            w_i   <- ||w - w_t||^2 / sum_i alpha_update"""
    assert (
        formulas.typeset(docstring, ["alpha", "lambda_"])
        == """\
With `alpha`, and the rate `η_α` of `α_ij`, `lambda_` and alpha:

    client  θ     ← θ - η ∇ loss(θ; b)                    (μ ≥ 0)
            w_i   ← ‖w - w_t‖² / Σ_i alpha_update"""
    )


def example(method):
    """Returns the code of a method's example, with a single round."""
    return re.sub("rounds=[0-9]+", "rounds=1", examples.code(method.names[0], method.titles[0]))


@pytest.mark.thorough
def test_examples_make_methods():
    for method in methods.listed():
        made = {}
        exec(example(method).partition("compared = ")[0], made)
        assert method.titles[0] in made["methods"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(method.names[0], marks=[] if method.names[0] == "fedavg" else pytest.mark.slow)
        for method in methods.listed()
    ],
)
def test_examples_run(name, monkeypatch, tmp_path_factory, clients_in_a_loop):
    monkeypatch.chdir(tmp_path_factory.getbasetemp())  # Local and FedAvg are trained once
    (method,) = (method for method in methods.listed() if method.names[0] == name)
    found = {}
    exec(example(method), found)
    assert method.titles[0] in found["compared"].table().index


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    """Builds it without executing notebooks, which have a test of their own."""
    pytest.importorskip("mkdocs")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={tmp_path}"],
        cwd=ROOT,
        env=os.environ | {"EXECUTE_NOTEBOOKS": "false"},
        check=True,
    )
    assert "Ditto" in (tmp_path / "methods" / "ditto.html").read_text()
