"""The ``ascend`` marker."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_ascend.options import CheckOptions


def test_help_names_every_option(pytester) -> None:
    text = pytester.runpytest_inprocess("--markers").stdout.str()
    line = next(line for line in text.splitlines() if line.startswith("@pytest.mark.ascend("))
    for field in dataclasses.fields(CheckOptions):
        assert f"{field.name}={field.default!r}" in line


def test_it_is_registered(pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.ascend(cosine=0.9)\ndef test_it(): pass")
    pytester.runpytest_inprocess("--strict-markers").assert_outcomes(passed=1)


@pytest.mark.parametrize("flag", [(), ("--ascend-compare=cpu",)])
def test_an_unknown_keyword_is_an_error_naming_the_known_ones(pytester, flag) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.ascend(criterium='cosine')\ndef test_it(): pass\ndef test_b(): pass"
    )
    result = pytester.runpytest_inprocess(*flag)
    result.assert_outcomes(errors=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    known = ", ".join([*CheckOptions.names(), "timeout"])
    result.stdout.fnmatch_lines(
        [f"@pytest.mark.ascend has no keyword 'criterium' (did you mean 'criterion'?): it knows {known}"]
    )
    result.stdout.no_fnmatch_line("*session.py*")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("'cosine'", "@pytest.mark.ascend takes keywords only, not 'cosine': it knows target, *"),
        ("cosine=float('nan')", "@pytest.mark.ascend: cosine=nan can't be a threshold: give a number in [[]-1, 1]"),
        ("max_abs=-1", "@pytest.mark.ascend: max_abs=-1 can't be a threshold*"),
        ("criterion='cosinus'", "@pytest.mark.ascend: criterion='cosinus' is not known*did you mean 'cosine'*"),
        ("timeout=0", "@pytest.mark.ascend: timeout=0 is no time: give seconds, such as 60"),
        ("repeats='two'", "@pytest.mark.ascend: repeats='two' is not a whole number"),
    ],
)
def test_bad_arguments_are_one_sentence(pytester, arguments, sentence) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.ascend({arguments})\ndef test_it(): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([sentence])
