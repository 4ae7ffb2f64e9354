"""Options and their ini twins: each resolves the same way, and a bad value is one sentence."""

from __future__ import annotations

import pytest

from pytest_ascend import settings
from pytest_ascend.settings import OPTIONS, Settings, give_back_paths

SEEN = """
def test_it(pretend, ascend_compare, request):
    seen = pretend("PASS")
    ascend_compare(abs, 1)
    print(seen[-1])
"""
BAD = [
    ("compare", "tpu", "'tpu' is no target: give auto (a real NPU, else the emulated one), npu or npu:N"),
    ("compare", "cpu:1", "'cpu:1' is no target"),
    ("criterion", "cosinus", "'cosinus' is no criterion: give one of auto, "),
    ("cosine", "nan", "'nan' can't be a cosine similarity: give a number from -1 to 1"),
    ("cosine", "1.5", "'1.5' can't be a cosine similarity"),
    ("max-abs", "nan", "'nan' can't be a largest absolute error: give a finite number, 0 or more"),
    ("max-abs", "-1", "'-1' can't be a largest absolute error"),
    ("max-abs", "inf", "'inf' can't be a largest absolute error"),
    ("max-abs", "small", "'small' can't be a largest absolute error"),
    ("api", ",", "',' names no API: give names or globs, such as 'torch.nn.functional.*'"),
    ("step", "first", "'first' is no list of numbers: give some such as 0 or 0,2-4"),
    ("rank", "0-", "'0-' is no list of numbers"),
    ("perf", "0", "'0' is no number of processes: give a whole number from 1 to 100"),
    ("perf", "many", "'many' is no number of processes"),
    ("perf-time", "0", "'0' can't be a time: give seconds, such as 600"),
    ("perf-time", "soon", "'soon' can't be a time"),
    ("fail", "perf:3", "'perf:3' is no limit: give perf:NUMBER% or error:NUMBERx, such as perf:3%,error:2x"),
    ("fail", "perf:3%,speed:2x", "'speed:2x' is no limit"),
    ("fail", "perf:0%", "'perf:0%': a slowdown to catch lies above 0 % and up to 100 %"),
    ("fail", "perf:101%", "'perf:101%': a slowdown to catch"),
    ("fail", "error:1x", "'error:1x': an error may grow more than 1 times, such as error:2x"),
    ("fail", "perf:3%,perf:4%", "'perf:3%,perf:4%' has perf twice: give one limit for it"),
    ("checkpoints", "some", "'some' is no choice of checkpoints: give sample, all, none"),
]


@pytest.mark.parametrize(("option", "value", "sentence"), BAD)
def test_a_bad_value_is_a_usage_error_naming_it(run, option, value, sentence) -> None:
    result = run("def test_it(): pass", f"--ascend-{option}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.stderr.lines if sentence in line]
    assert len(errors) == 1
    assert f"argument --ascend-{option}: " in errors[0]


@pytest.mark.parametrize(("option", "value", "sentence"), BAD)
def test_a_bad_ini_value_is_a_usage_error_naming_it(pytester, option, value, sentence) -> None:
    name = "ascend_" + option.replace("-", "_")
    pytester.makeini(f"[pytest]\n{name} = {value}")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ini option {name}: {sentence}" in result.stderr.str()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_an_ini_twin_and_names_it_in_its_help(pytester, option) -> None:
    text = " ".join(pytester.runpytest_inprocess("--help").stdout.str().split())
    assert f"{option.flag}" in text
    assert f"(ini: {option.ini})" in text
    assert option.field in Settings.__dataclass_fields__


def test_there_is_no_setting_without_an_option() -> None:
    assert [option.field for option in OPTIONS] == list(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("flag", "ini", "field", "other"),
    [
        ("--ascend-criterion=exact", "ascend_criterion = exact", "criterion='exact'", "--ascend-criterion=close"),
        ("--ascend-cosine=0.75", "ascend_cosine = 0.75", "cosine=0.75", "--ascend-cosine=0.5"),
        ("--ascend-max-abs=0.25", "ascend_max_abs = 0.25", "max_abs=0.25", "--ascend-max-abs=0.5"),
        ("--ascend-checkpoints=all", "ascend_checkpoints = all", "checkpoints=True", "--ascend-checkpoints=none"),
        ("--ascend-checkpoints=none", "ascend_checkpoints = none", "checkpoints=()", "--ascend-checkpoints=all"),
    ],
)
def test_command_line_else_ini_else_default(pytester, run, flag, ini, field, other) -> None:
    assert field not in run(SEEN, "-rP").stdout.str()
    assert field in run(SEEN, "-rP", flag).stdout.str()
    pytester.makeini(f"[pytest]\n{ini}")
    assert field in run(SEEN, "-rP").stdout.str()
    assert field not in run(SEEN, "-rP", other).stdout.str()


def test_ini_switches_comparing_on(pytester, run) -> None:
    pytester.makeini("[pytest]\nascend_compare = cpu\nascend_strict = true\n")
    pytester.makepyfile("def test_it(pretend, ascend_compare):\n    pretend('MARGINAL')\n    ascend_compare(abs, 1)")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["    reproduce: pytest *::test_it --ascend-compare=cpu"])


def test_an_empty_ini_value_leaves_comparing_off(pytester) -> None:
    pytester.makeini("[pytest]\nascend_compare =\n")
    pytester.makepyfile("def test_it(ascend_compare): assert False")
    pytester.runpytest_inprocess().assert_outcomes(skipped=1)


def test_off_the_fixtures_skip_and_name_the_option(pytester) -> None:
    pytester.makepyfile("def test_a(ascend_compare): assert False\ndef test_b(ascend_device): assert False")
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*: ascend_compare needs --ascend-compare", "*: ascend_device needs --ascend-compare"])
    result.stdout.no_fnmatch_line("ascend: *")


@pytest.mark.parametrize(
    "arg", ["test_mine.py", "test_mine.py::test_it", "./test_mine.py", "tests", "tests/test_deep.py"]
)
def test_a_path_after_the_option_is_a_path(pytester, arg) -> None:
    pytester.makepyfile(test_mine="def test_it(ascend_device): assert ascend_device.type == 'npu'")
    folder = pytester.mkdir("tests")
    (folder / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef deep(): return 1\n")
    (folder / "test_deep.py").write_text("def test_it(ascend_device, deep): assert deep")
    result = pytester.runpytest_inprocess("--ascend-compare", arg)
    result.assert_outcomes(passed=1)


def test_a_path_after_the_option_loads_its_conftest_early(pytester) -> None:
    folder = pytester.mkdir("suite")
    (folder / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--mine', action='store_true')")
    (folder / "test_it.py").write_text("def test_it(request): assert request.config.option.mine")
    pytester.runpytest_inprocess("--ascend-compare", "suite", "--mine").assert_outcomes(passed=1)


def test_a_missing_path_is_reported_as_a_path(pytester) -> None:
    result = pytester.runpytest_inprocess("--ascend-compare", "test_missing.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: file or directory not found: test_missing.py"])


@pytest.mark.parametrize(
    ("args", "rewritten"),
    [
        (["--ascend-compare", "cpu"], False),
        (["--ascend-compare", "emulated:Ascend910A"], False),
        (["--ascend-compare", "-k", "a/b"], False),
        (["--ascend-compare"], False),
        (["--ascend-compare", "tpu"], False),
        (["--ascend-compare=npu", "tests/a.py"], False),
        (["--ascend-compare", "tests/a.py"], True),
        (["--ascend-compare", "a.py::test[x]"], True),
        (["--pyargs", "--ascend-compare", "package.tests"], True),
    ],
)
def test_give_back_paths(args, rewritten) -> None:
    before = list(args)
    assert give_back_paths(args) is rewritten
    assert args == [("--ascend-compare=auto" if rewritten and arg == "--ascend-compare" else arg) for arg in before]


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().strict = True  # type: ignore[misc]


def test_target_specs_are_those_of_targets() -> None:
    for spec in ("auto", "npu", "npu:1", "emulated", "emulated:Ascend910A", "cuda", "cuda:0", "cpu"):
        assert settings.target(spec) == spec


@pytest.mark.parametrize(
    ("value", "perf", "error"),
    [("perf:3%,error:2x", 0.03, 2.0), (" error:1.5x , perf:.5% ", 0.005, 1.5), ("perf:12.5%", 0.125, None)],
)
def test_limits_are_decimals_in_any_order(value, perf, error) -> None:
    found = settings.limits(value)
    assert found.perf == (None if perf is None else pytest.approx(perf))
    assert found.error == error


def test_a_path_after_perf_is_a_path(tmp_path) -> None:
    args = ["--ascend-perf", str(tmp_path)]
    assert give_back_paths(args)
    assert args == ["--ascend-perf=5", str(tmp_path)]
    assert not give_back_paths(["--ascend-perf", "3"])
