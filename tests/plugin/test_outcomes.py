"""What each verdict does to its test."""

from __future__ import annotations

import pytest

from pytest_ascend.judge.verdict import Verdict

NOTED = ["MODE_DIFF", "AMPLIFIED", "REFERENCE_SUSPECT", "UNDEFINED", "NOT_COMPARABLE", "MARGINAL"]
FAILING = ["FAIL", "NONDETERMINISTIC", "VACUOUS", "NOT_EXERCISED", "MEMORY_FAULT", "CRASH"]
ONE = """
def test_it(pretend, ascend_compare):
    pretend({verdict!r})
    ascend_compare(abs, 1)
"""


def test_every_verdict_is_covered() -> None:
    assert {*NOTED, *FAILING, "PASS", "UNSUPPORTED", "INFRA"} == {verdict.value for verdict in Verdict}


def test_pass_passes(run) -> None:
    result = run(ONE.format(verdict="PASS"))
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ascend: 1 compared on npu:0: 1 PASS"])


@pytest.mark.parametrize("verdict", NOTED)
def test_noted_passes_with_a_visible_note(run, verdict) -> None:
    result = run(ONE.format(verdict=verdict))
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"{verdict}  *::test_it", f"    torch.relu float32: pretended {verdict}"])


@pytest.mark.parametrize("verdict", NOTED)
def test_noted_fails_under_strict(run, verdict) -> None:
    result = run(ONE.format(verdict=verdict), "--ascend-strict")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["    reproduce: pytest *::test_it --ascend-compare=cpu --ascend-strict"])


@pytest.mark.parametrize("verdict", FAILING)
def test_the_rest_fails(run, verdict) -> None:
    result = run(ONE.format(verdict=verdict))
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"ascend: 1 compared on npu:0: 1 {verdict}"])


def test_unsupported_skips_with_its_reason_at_the_test(run) -> None:
    result = run(ONE.format(verdict="UNSUPPORTED"), "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED * test_unsupported*.py:1: UNSUPPORTED: pretended UNSUPPORTED"])


def test_infra_is_an_error_not_a_failure(run) -> None:
    result = run(ONE.format(verdict="INFRA"))
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*ERROR at call of test_it*", "ERROR *::test_it*"])


def test_failure_shows_the_result_and_none_of_our_lines(run) -> None:
    result = run(
        """
        def test_it(pretend, ascend_compare):
            pretend("FAIL", kind=None)
            ascend_compare(abs, 1)
        """
    )
    result.stdout.fnmatch_lines(
        [
            "test_failure_shows*.py:3: in test_it",
            "    ascend_compare(abs, 1)",
            "E   ComparisonFailed: FAIL: torch.relu*",
        ]
    )
    result.stdout.no_fnmatch_line("*fixtures.py*")
    result.stdout.no_fnmatch_line("*def test_it*")


@pytest.mark.parametrize("style", ["long", "short", "line", "native", "no"])
def test_every_traceback_style_works(run, style) -> None:
    result = run(ONE.format(verdict="FAIL"), f"--tb={style}")
    result.assert_outcomes(failed=1)


def test_the_first_failing_call_raises_and_earlier_ones_are_recorded(run) -> None:
    result = run(
        """
        def test_it(pretend, ascend_compare):
            for verdict in ("PASS", "MODE_DIFF", "FAIL", "CRASH"):
                pretend(verdict)
                ascend_compare(abs, 1)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ascend: 3 compared on npu:0: 1 PASS, 1 MODE_DIFF, 1 FAIL"])


def test_check_records_without_asserting(run) -> None:
    result = run(
        """
        def test_it(pretend, ascend_compare):
            pretend("FAIL", first_divergence="layer2.0.conv1")
            assert ascend_compare.check(abs, 1).first_divergence == "layer2.0.conv1"
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "expected FAIL  *::test_it",
            "    first divergence: layer2.0.conv1",
            "ascend: 1 compared on npu:0: 1 FAIL (expected)",
        ]
    )


def test_a_caught_failure_is_expected(run) -> None:
    result = run(
        """
        import pytest
        def test_it(pretend, ascend_compare):
            pretend("FAIL")
            with pytest.raises(AssertionError, match="pretended FAIL"):
                ascend_compare(abs, 1)
            pretend("CRASH")
            ascend_compare(abs, 1)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["CRASH  *", "expected FAIL  *", "*1 FAIL (expected), 1 CRASH"])


def test_xfail_is_expected(run) -> None:
    result = run("import pytest\n@pytest.mark.xfail(strict=True)" + ONE.format(verdict="FAIL"))
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["ascend: 1 compared on npu:0: 1 FAIL (expected)"])


def test_a_recorded_failure_of_a_test_that_fails_itself_is_a_failure(run) -> None:
    result = run(
        """
        def test_it(pretend, ascend_compare):
            pretend("FAIL")
            assert ascend_compare.check(abs, 1).passed
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL  *::test_it", "ascend: 1 compared on npu:0: 1 FAIL"])


def test_the_result_is_returned(run) -> None:
    result = run(
        """
        def test_it(pretend, ascend_compare):
            pretend("PASS", cosine=0.5)
            assert ascend_compare(abs, 1).metrics["cosine_similarity"] == 0.5
        """
    )
    result.assert_outcomes(passed=1)


def test_a_comparison_in_a_fixture_is_recorded(run) -> None:
    result = run(
        """
        import pytest
        @pytest.fixture
        def ready(pretend, ascend_compare):
            pretend("PASS")
            ascend_compare(abs, 1)
            yield
            ascend_compare(abs, 1)
        def test_it(ready): pass
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["ascend: 2 compared on npu:0: 2 PASS"])


def test_a_failure_in_a_fixture_or_helper_shows_the_users_lines_only(run, pytester) -> None:
    result = run(
        """
        import pytest
        def helper(pretend, ascend_compare):
            pretend("FAIL")
            ascend_compare(abs, 1)
        @pytest.fixture
        def ready(pretend, ascend_compare): helper(pretend, ascend_compare)
        def test_it(ready): pass
        """
    )
    result.assert_outcomes(errors=1)
    lines = result.stdout.lines
    start = next(i for i, line in enumerate(lines) if "ERROR at setup" in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("E   ComparisonFailed"))
    assert [line.split()[-1] for line in lines[start + 1 : end] if ": in " in line] == ["ready", "helper"]
