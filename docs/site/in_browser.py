"""Tests the built site in Chromium: `make test-site`.

It needs no TensorFlow, and runs in an environment of its own.
"""

import functools
import http.server
import pathlib
import shutil
import threading

import pytest
from playwright.sync_api import sync_playwright

SITE = pathlib.Path(__file__).parents[2] / "site"
WIDTHS = (1440, 1000, 400)
PAGES = (
    "index",
    "install",
    "guides/index",
    "guides/own_method",
    "guides/comparing",
    "guides/sweeps",
    "guides/devices",
    "guides/side_by_side",
    "methods/index",
    "methods/fedper",
    "results/digits",
    "results/compression",
    "forms",
    "tutorials/own_method",
)
ANSWERS = {
    "install": "install",
    "slurm": "guides/clusters",
    "kubernetes": "guides/clusters",
    "cluster": "guides/clusters",
    "out of memory": "guides/large_models",
    "million clients": "guides/large_populations",
    "gpu": "guides/gpus",
    "epsilon": "guides/privacy",
    "differential privacy": "guides/privacy",
    "own data": "guides/own_data",
    "pandas": "guides/own_data",
    "own method": "guides/own_method",
    "LoRA": "guides/pretrained",
    "batch normalization": "guides/own_model",
    "learning rate": "guides/training",
    "aggregator": "guides/training",
    "compare": "guides/comparing",
    "hurt": "guides/comparing",
    "tuning": "guides/sweeps",
    "optuna": "guides/sweeps",
    "grid": "guides/sweeps",
    "metrics": "guides/metrics",
    "accuracy": "guides/metrics",
    "early stopping": "guides/evaluation",
    "seed": "guides/determinism",
    "reproducible": "guides/determinism",
    "resume": "guides/determinism",
    "attack": "guides/attacks",
    "dropout": "guides/participation",
    "new client": "guides/new_clients",
    "deploy": "guides/deployment",
    "SavedModel": "guides/deployment",
    "devices": "guides/devices",
    "regression": "guides/tasks",
    "wandb": "guides/trackers",
    "Flower": "guides/coming_from",
    "PFLlib": "guides/coming_from",
    "checkpoint": "files",
    "config": "keys",
    "notebook": "tutorials/index",
    "ditto": "methods/ditto",
    "fedper": "methods/fedper",
    "pgfed": "methods/pgfed",
}

# Elements that are wider than their place, and cannot be scrolled.
_CUT = """() => [...document.querySelectorAll("table, pre, img, svg, p, li, .md-tabs")]
  .filter(it => it.offsetParent !== null)
  .filter(it => {
    for (let up = it; up; up = up.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return false;
    }
    return it.getBoundingClientRect().right > innerWidth + 1;
  }).map(it => it.outerHTML.slice(0, 100))"""
# Blocks of code that have to be scrolled.
_WIDE_CODE = """() => [...document.querySelectorAll("pre > code")]
  .filter(it => !it.closest(".output") && it.scrollWidth > it.clientWidth + 1)
  .map(it => it.textContent.split("\\n").sort((a, b) => b.length - a.length)[0])
  .filter(line => line.length <= 80)"""
# Numbers that take two lines.
_BROKEN = """() => [...document.querySelectorAll("td[style*=right]")]
  .filter(it => it.getClientRects().length && it.textContent.trim())
  .filter(it => {
    const range = document.createRange();
    range.selectNodeContents(it);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top / 8))).size > 1;
  }).map(it => it.textContent)"""


@pytest.fixture(scope="module")
def address():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture
def open_page(browser, address):
    opened = []

    def open_(page, width=1440):
        tab = browser.new_page(viewport={"width": width, "height": 1000})
        opened.append(tab)
        assert tab.goto(f"{address}/{page}", wait_until="load").ok
        return tab

    yield open_
    for tab in opened:
        tab.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_and_no_number_breaks(open_page, page, width):
    tab = open_page(f"{page}.html", width)
    assert tab.evaluate(_CUT) == []
    assert tab.evaluate(_BROKEN) == []


@pytest.mark.parametrize("page", PAGES)
def test_code_of_80_columns_fits_beside_the_navigation(open_page, page):
    assert open_page(f"{page}.html", 1000).evaluate(_WIDE_CODE) == []


@pytest.mark.parametrize(("width", "has_navigation"), [(1440, True), (1000, True), (900, False)])
def test_navigation_stays_on_narrow_screens(open_page, width, has_navigation):
    tab = open_page("guides/own_method.html", width)
    left = tab.locator(".md-sidebar--primary").bounding_box()["x"]
    assert (left >= 0) == has_navigation
    assert tab.locator(".md-sidebar--secondary").is_visible() == (width == 1440)


@pytest.mark.parametrize("words", ANSWERS)
def test_first_result_of_a_search_is_the_right_page(open_page, words):
    tab = open_page(f"index.html?q={words}")
    first = tab.locator(".md-search-result__item > a").first
    found = first.get_attribute("href", timeout=20_000).partition("?")[0]
    assert found.endswith(f"/{ANSWERS[words]}.html")
