"""Tests the names that `import tff_pfl` offers, and that imports are lazy."""

import importlib
import pkgutil

import pytest

import tff_pfl
from tests.runs import run_python


def test_offered_names_are_the_objects_of_their_packages():
    for name in tff_pfl.__all__:
        assert getattr(tff_pfl, name) is not None, name
        assert name in dir(tff_pfl)
    assert tff_pfl.compose is tff_pfl.templates.compose
    assert tff_pfl.trees is tff_pfl.local.trees
    with pytest.raises(AttributeError, match="has no attribute 'composer_of'"):
        tff_pfl.composer_of  # noqa: B018


def test_import_does_not_import_tensorflow(tmp_path):
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "import tff_pfl\n"
        "tff_pfl.prepare_process()\n"
        "assert not {'tensorflow', 'tensorflow_federated', 'numpy'} & set(sys.modules)\n"
    )
    done = run_python(tmp_path / "program.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_do_not_offer_names_of_modules():
    for name in ("clients", "data", "evaluation", "config", "runtime"):
        package = importlib.import_module(f"tff_pfl.{name}")
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(package.__all__)
        for offered in package.__all__:
            assert offered in dir(package)
            assert getattr(package, offered) is not None


def test_error_of_a_module_is_not_a_missing_attribute(tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text(
        "from tff_pfl.lazy import offer\n"
        "if TYPE_CHECKING := False:\n"
        "    from broken.fails import Name\n"
        "else:\n"
        "    __getattr__, __dir__, __all__ = offer(__name__)\n"
    )
    (tmp_path / "broken" / "fails.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    broken = importlib.import_module("broken")
    for name in ("Name", "fails"):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            getattr(broken, name)
