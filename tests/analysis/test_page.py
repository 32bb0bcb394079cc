"""Tests the content of the page about hand-written runs, and that it is self-contained."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.analysis.hand_written import write_run
from tff_pfl.analysis import read, write_page
from tff_pfl.experiment import OutputDirectoryError

_VOID = {"meta", "img", "wbr"}


class Parsed(HTMLParser):
    """A parsed page: the attributes of all tags, which must be closed, and the text of cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.rows = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def pictures(self):
        sources = [attrs["src"] for tag, attrs in self.attributes if tag == "img"]
        return [base64.b64decode(x.removeprefix("data:image/svg+xml;base64,")) for x in sources]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root, folders = tmp_path_factory.mktemp("runs"), {}
    values = {
        "A <b> & c": ("ditto", [[0.5, 1.0, 0.75], [0.25, 0.75, 1.0]]),
        "Alone": ("local", [[0.75, 0.5, 0.75], [0.5, 0.25, 0.5]]),
        "elsewhere": ("fedavg", [[0.5, 0.5, 0.5]]),
    }
    for index, (label, (algorithm, accuracies_by_seed)) in enumerate(values.items()):
        options = {"algorithm": algorithm, "rounds": 10, "first_row": 100 * (index == 2)}
        folders[label] = [
            write_run(root / f"{index}/{seed}", accuracies, seed=seed, drawn=seed, **options)
            for seed, accuracies in enumerate(accuracies_by_seed)
        ]
    return folders


@pytest.fixture(scope="module")
def text(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "new" / "page.html"
    write_page(read(runs), path)
    return path.read_text()


@pytest.mark.thorough
def test_page_has_results_settings_and_versions(text):
    page, gain = Parsed(text), ["+16.67", "-89.22 to +122.55", "0.295"]
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>A &lt;b&gt; &amp; c; Alone; elsewhere</title>" in text and "<b>" not in text
    assert page.rows[1][:2] == ["A <b> & c", "70.83 ± 5.89"]
    assert "<strong>70.83 ± 5.89</strong>" in text
    assert ["A <b> & c", "33.3 %", "50.0 %", *gain] in page.rows  # of 6 clients, against Local
    assert ["A <b> & c", "1 of 2", "10.0", "0.03", "22.0"] in page.rows  # to the target
    assert ["algorithm.name", "ditto", "local", "fedavg"] in page.rows
    assert ["drawn", "by seed", "by seed", "0"] in page.rows
    # Only the table of shared settings has the rounds.
    assert len([row for row in page.rows if row[0] == "rounds"]) == 1
    assert "Seeds 0, 1." in text
    assert ["python", "3.11.1"] in page.rows and "made by tff_pfl 0.1.0." in text


def test_page_is_self_contained(text):
    page = Parsed(text)
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\(|<script""", text)
    pictures = page.pictures()
    assert len(pictures) == 3
    for picture in pictures:
        assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert all(attrs["alt"] for tag, attrs in page.attributes if tag == "img")


@pytest.mark.thorough
def test_page_without_accuracies_shows_the_first_metric(tmp_path):
    """Leaves out the target."""
    run = write_run(tmp_path / "run", [0.5, 1.0])
    for path in (run / "summary.json", run / "metrics.csv", *(run / "clients").iterdir()):
        path.write_text(path.read_text().replace("accuracy", "score"))
    summary = json.loads((run / "summary.json").read_text())
    del summary["checksum"]
    summary["checksum"] = f"{zlib.crc32(json.dumps(summary).encode()):08x}"
    (run / "summary.json").write_text(json.dumps(summary))
    write_page(read(run), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Parsed(text)
    assert page.rows[0][:2] == ["method", "personalized, score"]
    assert "Costs to reach a target" not in text
    assert "Settings that differ between variants" not in text
    assert "This comparison needs a finished run of the algorithm local" in text
    assert len(page.pictures()) == 2


def test_page_says_why_it_has_no_curves_where_runs_have_one_evaluation(tmp_path):
    run = write_run(tmp_path / "run", [0.5, 1.0])
    head, *rows = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join([head, rows[-1], ""]))
    write_page(read(run), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Each run was evaluated once." in text and len(Parsed(text).pictures()) == 1
    assert "Costs to reach a target" not in text


@pytest.mark.thorough
def test_page_has_columns_target_and_paired_test(runs, tmp_path):
    path = tmp_path / "page.html"
    columns = ["late_mean:personalized/local_test/accuracy"]
    paired = {label: runs[label] for label in ("A <b> & c", "Alone")}
    write_page(read(paired), path, columns=columns, target=0.3, against="Alone")
    page = Parsed(path.read_text())
    assert page.rows[0][1:3] == [
        "personalized, late mean (%)",
        "personalized, late mean, minus Alone's",
    ]
    assert ["Alone", "2 of 2", "7.5", "0.0225", "20.8"] in page.rows
    write_run(tmp_path / "a", [0.5], finished=False)
    with pytest.raises(OutputDirectoryError, match="a has no finished run"):
        write_page(read(tmp_path / "a"), tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
