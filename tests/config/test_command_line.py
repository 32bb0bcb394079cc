"""Tests what names the runs on a command line; `test_report.py` tests the subcommands."""

import json

from tests.analysis.hand_written import write_run
from tff_pfl.config.command_line import runs_of


def test_file_and_folder_of_a_study_have_the_variants_of_the_file(tmp_path):
    write_run(tmp_path / "Ditto/seed7", [0.5], seed=7)
    record = {"title": "Before", "baseline": "A", "variants": {"A": []}, "chosen": {"Ditto": "b"}}
    (tmp_path / "study.json").write_text(json.dumps(record))
    (tmp_path / "study.py").write_text(
        "from tff_pfl.studies import Study, Variant\n"
        "def get_study():\n"
        "    return Study('By its file', {'Ditto': Variant('y')}, seeds=(7,))\n"
    )
    assert runs_of([str(tmp_path)]).title == "Before"
    found = runs_of([str(tmp_path / "study.py"), str(tmp_path)])
    assert (found.title, found.chosen) == ("By its file", {"Ditto": "b"})
    assert found.folders == {"Ditto": [tmp_path / "Ditto/seed7"]}
