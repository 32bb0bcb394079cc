"""Tests where progress bars are shown."""

from tff_pfl.output import progress


def test_notebooks_show_bars_files_do_not_and_hidden_bars_still_write(monkeypatch, capsys):
    with progress.progress_bar(total=1) as in_a_file:
        assert in_a_file.disable
    monkeypatch.setattr(progress, "_IN_NOTEBOOK", True)
    with progress.progress_bar(total=1) as shown:
        assert not shown.disable
    with progress.progress_bar(total=1, visible=False) as hidden:
        assert hidden.disable
        hidden.write("warning")
    assert capsys.readouterr().out == "warning\n"
