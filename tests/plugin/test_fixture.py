"""ascend_compare and ascend_device: options, their order, seeds."""

from __future__ import annotations

import pytest

from pytest_ascend.marks import merge
from pytest_ascend.session import seed_of


def test_using_wins_over_marker_wins_over_command_line(run) -> None:
    result = run(
        """
        import pytest
        pytestmark = pytest.mark.ascend(cosine=0.1, repeats=2)
        @pytest.mark.ascend(cosine=0.2, max_abs=2)
        class TestIt:
            @pytest.mark.ascend(cosine=0.3)
            def test_it(self, pretend, ascend_compare):
                seen = pretend("PASS")
                ascend_compare(abs, 1)
                bound = ascend_compare.using(cosine=0.4).using(max_abs=1)
                bound(abs, 1)
                ascend_compare(abs, 1)
                assert [options.cosine for options in seen] == [0.3, 0.4, 0.3]
                assert [options.max_abs for options in seen] == [2, 1, 2]
                assert {(o.repeats, o.criterion, o.checkpoints, o.target) for o in seen} == {(2, "cosine", True, "cpu")}
        """,
        "--ascend-criterion=cosine",
        "--ascend-cosine=0.05",
        "--ascend-checkpoints=all",
    )
    result.assert_outcomes(passed=1)


def test_arguments_reach_the_callable_under_test(run) -> None:
    result = run(
        """
        import torch
        def test_it(ascend_compare):
            def f(fn, options, *, self=3): return torch.ones(2) * fn + options + self
            result = ascend_compare(f, 1, 2, self=4)
            assert result.passed
        """
    )
    result.assert_outcomes(passed=1)


def test_unknown_option_of_using_is_one_sentence_at_the_tests_line(run) -> None:
    result = run(
        """
        def test_it(ascend_compare):
            ascend_compare.using(cosin=1)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [">       ascend_compare.using(cosin=1)", "E       TypeError: unknown option 'cosin'; did you mean 'cosine'?*"]
    )
    result.stdout.no_fnmatch_line("*options.py*")


@pytest.mark.parametrize("value", ["float('nan')", "2", "'high'"])
def test_bad_threshold_of_using_is_one_sentence(run, value) -> None:
    result = run(f"def test_it(ascend_compare):\n    ascend_compare.using(cosine={value})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E       *Error: cosine=*"])


def test_the_seed_is_the_tests_own_and_recorded(run, pytester) -> None:
    source = """
        import random
        import numpy as np
        import pytest
        import torch

        @pytest.fixture
        def drawn():  # before ascend_compare
            return torch.rand(()).item(), np.random.rand(), random.random()

        @pytest.mark.parametrize("case", [0, 1])
        def test_it(drawn, case, pretend, ascend_compare):
            seen = pretend("PASS")
            ascend_compare(abs, 1)
            ascend_compare.using(seed=7)(abs, 1)
            print("drawn", drawn, *[options.seed for options in seen])
        """
    first, second = (run(source, "-rP").stdout.str() for _ in range(2))
    lines = [line for line in first.splitlines() if line.startswith("drawn")]
    assert lines == [line for line in second.splitlines() if line.startswith("drawn")]
    assert len(set(lines)) == 2
    nodeid = "test_the_seed_is_the_tests_own_and_recorded.py::test_it"
    assert [line.split()[-2:] for line in lines] == [[str(seed_of(f"{nodeid}[{case}]")), "7"] for case in (0, 1)]


def test_ascend_device_is_the_targets(run) -> None:
    source = "import torch\ndef test_it(ascend_device): assert ascend_device == torch.device({!r})"
    run(source.format("cpu")).assert_outcomes(passed=1)
    run(source.format("npu:1"), "--ascend-compare=emulated:1").assert_outcomes(passed=1)


def test_a_real_comparison_passes_and_fails(run) -> None:
    result = run(
        """
        import torch
        def test_right(ascend_compare):
            ascend_compare(torch.softmax, torch.randn(4, 8), dim=-1)
        def test_wrong(ascend_compare):
            ascend_compare.using(reference=torch.cos)(torch.sin, torch.randn(4, 8))
        """,
        "--ascend-compare",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["ascend: npu:0 (emulated Ascend910B), torch *, hf32 conv on / matmul off*"])
    result.stdout.fnmatch_lines(
        ["E   ComparisonFailed: FAIL (*", "*reproduce: pytest *::test_wrong --ascend-compare=emulated"]
    )
    result.stdout.fnmatch_lines(["ascend: 2 compared on npu:0 (emulated Ascend910B): 1 PASS, 1 FAIL"])


@pytest.mark.parametrize(
    ("lower", "upper", "merged"),
    [
        ({"cosine": 0.9, "target": "cpu"}, {"criterion": "exact"}, {"target": "cpu", "criterion": "exact"}),
        ({"cosine": 0.9}, {"criterion": "cosine"}, {"cosine": 0.9, "criterion": "cosine"}),
        ({"cosine": 0.9, "max_abs": 1}, {"cosine": 0.8}, {"cosine": 0.8, "max_abs": 1}),
        ({"cosine": 0.9, "max_abs": 1}, {"rtol": 0.1}, {"rtol": 0.1}),
        ({"criterion": "exact"}, {"cosine": 0.8}, {"cosine": 0.8}),
        ({"criterion": "cosine"}, {"cosine": 0.8}, {"criterion": "cosine", "cosine": 0.8}),
        ({"criterion": "exact"}, {"repeats": 2}, {"criterion": "exact", "repeats": 2}),
        ({"cosine": 0.9}, {"repeats": 2}, {"cosine": 0.9, "repeats": 2}),
    ],
)
def test_a_threshold_of_the_command_line_yields_to_a_tests_criterion(lower, upper, merged) -> None:
    assert merge(lower, upper) == merged


def test_a_threshold_of_the_command_line_beside_a_tests_criterion(run) -> None:
    source = (
        "import torch\ndef test_it(ascend_compare): ascend_compare.using(criterion='exact')(torch.abs, torch.ones(2))"
    )
    run(source, "--ascend-compare", "--ascend-cosine=0.9").assert_outcomes(passed=1)


def test_a_callable_may_have_an_argument_called_options(pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def scaled(x, options):
            return x * options["scale"]

        def test_it(ascend_compare):
            assert ascend_compare(scaled, torch.ones(2), options={"scale": 2.0}).passed
        """
    )
    pytester.runpytest("--ascend-compare=cpu").assert_outcomes(passed=1)
