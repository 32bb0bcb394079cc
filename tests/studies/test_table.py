"""The results of a study as CSV."""

import pytest

from tests.reports.hand_written import write_run
from tff_pfl import studies
from tff_pfl.reports import client_values, compared, to_csv


@pytest.mark.parametrize("label", ["=1+1", "+a", "-a", "@a", "\ta"])
def test_no_cell_of_results_is_a_formula(tmp_path, label):
    comparison = compared("t", {label: [write_run(tmp_path / "a", [-0.5])]})
    studies.write_csv(tmp_path / "results.csv", comparison)
    text = (tmp_path / "results.csv").read_text()
    assert text.splitlines()[1].startswith(f"'{label},0,-0.5,nan,1000.0,")
    values = client_values(comparison, "personalized/local_test/accuracy")
    assert to_csv(values.rows, values.heads) == f"seed,client_id,'{label}\n0,0,-0.5"
