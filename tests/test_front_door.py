"""What `import tff_pfl` offers, and when it imports what."""

import pytest

import tff_pfl
from tests.runs import run_python


def test_all_names_are_there_and_are_those_of_their_rooms():
    for name in tff_pfl.__all__:
        assert getattr(tff_pfl, name) is not None, name
        assert name in dir(tff_pfl)
    assert tff_pfl.compose is tff_pfl.templates.compose
    assert tff_pfl.trees is tff_pfl.local.trees
    with pytest.raises(AttributeError, match="has no attribute 'composer_of'"):
        tff_pfl.composer_of  # noqa: B018


def test_nothing_is_imported_before_it_is_asked_for(tmp_path):
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "import tff_pfl\n"
        "tff_pfl.prepare_process()\n"
        "assert not {'tensorflow', 'tensorflow_federated', 'numpy'} & set(sys.modules)\n"
    )
    done = run_python(tmp_path / "program.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
