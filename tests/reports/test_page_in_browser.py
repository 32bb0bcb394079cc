"""The page in a narrow and in a wide frame of a browser, if there is a Chromium."""

import html
import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

from tests.reports.hand_written import write_run
from tff_pfl.reports import compared, write_page

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
# Chromium's windows are 500 pixels wide or more; frames may have any width.
_FRAME = """
<body style="margin: 0">
<iframe style="border: 0; width: {width}px; height: 2000px" scrolling="no"
  onload="document.title = this.contentDocument.title" srcdoc="{page}"></iframe>
"""
# Makes the title of the page, which is dumped, say how wide it is and what does not fit.
_MEASURE = """
<script>
  const width = document.documentElement.clientWidth;
  const beyond = [...document.querySelectorAll("h1, h2, p, .scroll, figure")].filter(
    (element) => element.getBoundingClientRect().right > width + 0.5);
  const broken = [...document.images].filter((image) => !image.naturalWidth);
  document.title = `${width} wide, needs ${document.documentElement.scrollWidth}, ` +
    `${beyond.length} elements beyond, ${broken.length} pictures broken`;
</script>
"""

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"there is no browser: none of {', '.join(BROWSERS)}"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with all of its sections, and more variants than a narrow window has room for."""
    folder = tmp_path_factory.mktemp("page")
    runs = {}
    for number, algorithm in enumerate(("local", "fedavg", "ditto", "fedper", "apfl")):
        runs[f"{algorithm} with a long name"] = [
            write_run(
                folder / f"{algorithm}{seed}",
                np.linspace(0.2 + 0.1 * number, 1, 5),
                seed=seed,
                algorithm=algorithm,
                global_accuracies=np.linspace(0.3, 0.9, 5),
                local={"a_key_that_has_a_very_long_name": f"{'value' * 5}{number}"},
            )
            for seed in range(2)
        ]
    path = folder / "page.html"
    write_page(compared("Five methods", runs), path)
    return path.read_text().replace("</body>", f"{_MEASURE}</body>")


@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits_the_frame(page, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(_FRAME.format(width=width, page=html.escape(page)))
    picture = tmp_path / "page.png"
    shown = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,2000"),
            *("--dump-dom", f"--screenshot={picture}", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    title = re.search("<title>(.*)</title>", shown.stdout)[1]
    assert title == f"{width} wide, needs {width}, 0 elements beyond, 0 pictures broken"
    pixels = matplotlib.image.imread(picture)[:, :width, :3]
    text = np.any(pixels != pixels[-1, 0], axis=2)
    assert 0.01 < text.mean() < 0.5  # neither blank nor filled
    assert text[:, : width // 2].any() and text[:1000].any() and text[1000:].any()
