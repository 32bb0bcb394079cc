"""The page of runs that are written by hand: what is on it, and that it needs nothing else."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.reports.hand_written import keep_evaluated_rounds, write_run
from tests.runs import run_main
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.files import write_json
from tff_pfl.reports import compared, write_page
from tff_pfl.reports.against_local import against_local
from tff_pfl.reports.target import Cost, cost_to_target, default_target, target_table
from tff_pfl.reports.versions import versions_tables

ACCURACY = MetricName("personalized", "local_test", "accuracy", "mean")
_VOID = {"meta", "img", "wbr"}


class Parsed(HTMLParser):
    """Tags that are closed as they should be, their attributes, and the text of each cell."""

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
def comparison(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("runs")
    values = {
        "A <b> & c": ("ditto", [[0.5, 1.0, 0.75], [0.25, 0.75, 1.0]]),
        "Alone": ("local", [[0.75, 0.5, 0.75], [0.5, 0.25, 0.5]]),
        "elsewhere": ("fedavg", [[0.5, 0.5, 0.5]]),
    }
    runs = {}
    for index, (label, (algorithm, of_seeds)) in enumerate(values.items()):
        runs[label] = [tmp_path / str(index) / str(seed) for seed in range(len(of_seeds))]
        for seed, (run_dir, accuracies) in enumerate(zip(runs[label], of_seeds, strict=True)):
            options = {"algorithm": algorithm, "seed": seed, "rounds": 10}
            write_run(run_dir, accuracies, first_row=100 * (label == "elsewhere"), **options)
    return compared("A <title>", runs)


@pytest.fixture(scope="module")
def text(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "new" / "page.html"
    write_page(comparison, path)
    return path.read_text()


def test_the_page(text):
    page = Parsed(text)
    assert "<title>A &lt;title&gt;</title>" in text and "<b>" not in text
    assert "A <b> & c" in [row[0] for row in page.rows]
    assert ["A <b> & c", "33.3 %", "50.0 %"] in page.rows  # of 6 clients, against Local
    assert ["algorithm.name", "ditto", "local", "fedavg"] in page.rows
    assert len([row for row in page.rows if row[0] == "rounds"]) == 1  # only among all
    assert ["python", "3.11.1"] in page.rows and "made by tff_pfl 0.1.0." in text
    pictures = page.pictures()
    assert len(pictures) == 3
    for picture in pictures:
        assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert all(attrs["alt"] for tag, attrs in page.attributes if tag == "img")


def test_versions(tmp_path):
    machine = {"python": "3.11.1", "commit": None, "devices": ["CPU:0", "GPU:0, H100"]}
    runs = [
        write_run(tmp_path / "0", [0.5], sessions=[(0, machine)]),
        write_run(tmp_path / "1", [0.5], seed=1, sessions=[(0, machine), (6, {"python": "3.12"})]),
        write_run(tmp_path / "2", [0.5], seed=2, sessions=[]),
    ]
    same, different = versions_tables(compared("t", {"a": runs}))
    assert [[cell.text for cell in row] for row in same.rows] == [["commit", "-"]]
    assert same.notes == ["Runs that do not record theirs: 1."]
    assert different.heads == ["run", "python", "devices"]
    assert [[cell.text for cell in row] for row in different.rows] == [
        ["a, seed 0", "3.11.1", "CPU:0, GPU:0, H100"],
        ["a, seed 1", "3.11.1", "CPU:0, GPU:0, H100"],
        ["a, seed 1, after round 6", "3.12", "-"],
    ]
    (nothing,) = versions_tables(compared("t", {"a": runs[2:]}))
    assert (nothing.rows, nothing.notes) == ([], ["Runs that do not record theirs: 1."])


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(comparison, text, tmp_path):
    write_page(comparison, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == text


def test_it_needs_nothing_else_and_fits_narrow_windows(text):
    page = Parsed(text)
    tags = [tag for tag, _ in page.attributes]
    assert not {"script", "link", "iframe", "object"} & set(tags)
    for _, attributes in page.attributes:
        assert not any(key.startswith("on") for key in attributes)
        assert attributes.get("src", "data:").startswith("data:")
        assert "href" not in attributes
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert re.search(r"img \{[^}]*max-width: 100%", style)
    assert re.search(r"\.scroll \{ overflow-x: auto", style)
    assert text.count("<table>") == text.count('<div class="scroll" tabindex="0"><table>') == 6
    assert "prefers-color-scheme: dark" in style and "@media print" in style


def test_who_is_hurt(comparison):
    (label,) = found = against_local(comparison, ACCURACY)
    assert label == "A <b> & c"  # the other has other clients
    np.testing.assert_array_equal(found[label].own, [0.5, 1.0, 0.75, 0.25, 0.75, 1.0])
    np.testing.assert_array_equal(found[label].local, [0.75, 0.5, 0.75, 0.5, 0.25, 0.5])
    assert (found[label].share_hurt, found[label].share_gaining) == (2 / 6, 3 / 6)


def test_variants_that_have_no_pair_are_left_out(tmp_path):
    kinds = {"Alone": "local", "a sample": "ditto", "partition is gone": "ditto", "b": "fedavg"}
    runs = {
        label: [write_run(tmp_path / label, [0.5, 0.25], algorithm=algorithm)]
        for label, algorithm in kinds.items()
    }
    for table in (tmp_path / "a sample/clients").iterdir():
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:2]))
    (tmp_path / "partition is gone/partition.npz").unlink()
    assert list(against_local(compared("t", runs), ACCURACY)) == ["b"]


def test_what_a_target_costs(tmp_path):
    run_dir = write_run(tmp_path / "a", [0.5, 1.0], early=0.5, bytes_down=1_000_000)
    comparison = compared("t", {"a": [run_dir]})
    (run,) = comparison.results["a"]
    assert default_target(comparison, ACCURACY) == pytest.approx(0.95 * 0.75)
    # 0.375 in round 5, 0.75 in round 10; the first two rounds take 9 s, all others half a second.
    assert cost_to_target(run, ACCURACY, 0.375) == Cost(5, 15.0, 19.5)
    assert cost_to_target(run, ACCURACY, 0.376) == Cost(10, 30.0, 22.0)
    assert cost_to_target(run, ACCURACY, 0.76) is None
    same = write_run(tmp_path / "same", [0.7, 0.7, 0.7])  # the mean of these is 0.7 less 2e-16
    (run_of_same,) = compared("", {"same": [same]}).results["same"]
    assert cost_to_target(run_of_same, ACCURACY, 0.7).rounds == 10
    keep_evaluated_rounds(run_dir)  # seconds of the others are unknown
    cost = cost_to_target(run, ACCURACY, 0.376)
    assert cost[:2] == (10, 30.0) and np.isnan(cost.seconds)
    (row,) = target_table(comparison, ACCURACY, 0.376).rows
    assert [cell.text for cell in row] == ["a", "1 of 1", "10.0", "30", "-"]


def test_runs_with_settings_of_ones_own(tmp_path):
    """As `tff_pfl.train` leaves them: a user names what varies, and how it likes."""
    runs = {}
    for label, accuracies, settings in (
        ("half", [0.5, 0.75], {"share": 0.5, "algorithm": "mixed"}),
        ("Local", [0.25, 1.0], {"algorithm": "local"}),
    ):
        runs[label] = [write_run(tmp_path / label, accuracies)]
        write_json(tmp_path / label / "config.json", settings)
    comparison = compared("Two", runs)
    assert [result.seed for label in runs for result in comparison.results[label]] == [0, 0]
    assert list(against_local(comparison, ACCURACY)) == ["half"]
    write_page(comparison, tmp_path / "page.html")
    assert ["share", "0.5", "-"] in Parsed((tmp_path / "page.html").read_text()).rows


def test_nothing_is_finished(tmp_path):
    write_run(tmp_path / "a", [0.5], finished=False)
    with pytest.raises(OutputDirectoryError, match="No run of the comparison is finished"):
        write_page(compared("t", {"a": [tmp_path / "a"]}), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_program(tmp_path):
    run_dirs = [write_run(tmp_path / f"a{seed}", [0.5, 1.0], seed=seed) for seed in range(2)]
    path = tmp_path / "page.html"
    runs = [f"a:{run_dir}" for run_dir in run_dirs]
    columns = "--columns=late_mean:personalized/local_test/accuracy"
    done = run_main("report.py", "page", *runs, f"--output={path}", "--target=0.3", columns)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = Parsed(path.read_text())
    assert ["a", "2 of 2", "5.0", "0.015", "19.5"] in page.rows
    assert page.rows[0][:2] == ["method", "personalized, late mean (%)"]
    assert "No variant of the algorithm local is known to have the" in path.read_text()
    other = f"b:{write_run(tmp_path / 'b', [0.5, 1.0], first_row=9)}"
    done = run_main("report.py", "table", *runs, other, "--against=b")
    assert done.returncode == 1 and "have different partitions: their clients" in done.stderr
    done = run_main("report.py", "page", *runs, "--output=page.png")
    assert done.returncode == 1 and "--output of page ends in .html, found" in done.stderr
    done = run_main("report.py", "table", *runs, "--output=table.md")
    assert done.returncode == 1 and "table knows no --output, which is of curves," in done.stderr
    done = run_main("report.py", "page", *runs, f"--output={path}", "--against=b")
    assert done.returncode == 1 and "Unknown variant with finished runs 'b'" in done.stderr
