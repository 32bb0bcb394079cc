import pytest

from tff_pfl.names import check_names, unknown_name


def test_unknown_name_gives_the_nearest_and_all():
    assert unknown_name("model", "lenett", ["mlp", "lenet"]) == (
        "Unknown model 'lenett'. Did you mean 'lenet'? Valid: 'mlp', 'lenet'."
    )


def test_unknown_name_without_a_near_one():
    assert unknown_name("x", "qqq", ["b", "a"]) == "Unknown x 'qqq'. Valid: 'b', 'a'."
    assert unknown_name("x", "qqq", []) == "Unknown x 'qqq'. Valid: none."


def test_check_names_raises_the_given_error_with_the_tip():
    check_names("key", ["a"], ["a", "b"])
    with pytest.raises(KeyError, match="Unknown key 'aa'.* Did you mean 'a'.* Look there"):
        check_names("key", ["a", "aa"], ["a", "b"], error=KeyError, tip="Look there.")
