"""Under pytest-xdist: workers record, the controller reports and writes."""

from __future__ import annotations

import json

import jsonschema
import pytest

from pytest_ascend.report.results_json import SCHEMA

pytest.importorskip("xdist")

SOURCE = """
import pytest
@pytest.mark.parametrize("verdict", ["PASS", "PASS", "MODE_DIFF", "FAIL", "UNSUPPORTED", "INFRA"])
def test_it(verdict, pretend, ascend_compare):
    pretend(verdict, environment={"soc": "Ascend910B"}, layers=[pretend.layer("fc")], first_divergence="fc")
    ascend_compare(abs, 1)
"""


def test_results_come_back_to_the_controller(run, pytester) -> None:
    result = run(SOURCE, "-n", "2", "--ascend-json=results.json", "--ascend-cosine=0.5", subprocess=True)
    result.assert_outcomes(passed=3, failed=1, skipped=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "E   ComparisonFailed: FAIL: torch.relu, float32, npu:0",
            "*= ascend =*",
            "FAIL  *::test_it?FAIL?",
            "    reproduce: pytest '*::test_it?FAIL?' --ascend-compare=cpu --ascend-cosine=0.5",
            "ascend: 6 compared on npu:0: 2 PASS, 1 MODE_DIFF, 1 UNSUPPORTED, 1 FAIL, 1 INFRA",
        ]
    )
    result.stdout.fnmatch_lines(["MODE_DIFF  *::test_it?MODE_DIFF?"])
    result.stdout.fnmatch_lines(["*ERROR at call of test_it?INFRA?*"])
    content = json.loads((pytester.path / "results.json").read_text())
    jsonschema.validate(content, SCHEMA)
    assert sum(content["summary"].values()) == len(content["results"]) == 6
    assert content["environment"]["soc"] == "Ascend910B"


def test_a_path_after_the_option_is_a_path_in_workers_too(run) -> None:
    source = "def test_it(ascend_device): assert ascend_device.type == 'npu'"
    name = "test_a_path_after_the_option_is_a_path_in_workers_too.py"
    run(source, "--ascend-compare", name, "-n", "2", subprocess=True).assert_outcomes(passed=1)


def test_a_missing_device_is_a_usage_error_of_the_controller(run) -> None:
    result = run("def test_it(): pass", "--ascend-compare=cuda", "-n", "2", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.stderr.lines if line] == [
        "ERROR: --ascend-compare=cuda: torch finds no CUDA device: check the driver and CUDA_VISIBLE_DEVICES"
    ]


def test_a_bad_marker_is_an_error_of_its_test(run) -> None:
    source = "import pytest\n@pytest.mark.ascend(cosin=1)\ndef test_a(): pass\ndef test_b(): pass"
    result = run(source, "-n", "2", subprocess=True)
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["@pytest.mark.ascend has no keyword 'cosin' (did you mean 'cosine'?)*"])


def test_nothing_compared_is_said_once(run) -> None:
    result = run("def test_it(): pass", "-n", "2", subprocess=True)
    assert result.stdout.str().count("nothing was compared") == 1


def test_each_worker_compares_on_a_card_of_the_callers_list(run, pytester, monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "5,7")
    result = run(
        """
        import os, time, pytest, torch
        @pytest.mark.parametrize("i", range(6))
        def test_it(i, ascend_compare):
            assert torch.npu.device_count() == 1
            assert os.environ["ASCEND_RT_VISIBLE_DEVICES"] == os.environ["PYTEST_ASCEND_DEVICE"]
            time.sleep(0.2)  # so that both have some
            dtype = (torch.float32, torch.float16)[i % 2]
            ascend_compare(torch.nn.Linear(8, 4).to(dtype), torch.randn(2, 8, dtype=dtype))
        """,
        "--ascend-compare",
        "--ascend-json=results.json",
        "-n",
        "auto",
        subprocess=True,
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["ascend: 2 workers on cards 5, 7"])
    result.stdout.fnmatch_lines(["ascend: 6 compared on npu:0 (emulated Ascend910B): 6 PASS"])
    found = json.loads((pytester.path / "results.json").read_text())["results"]
    assert {one["device"] for one in found} == {"5", "7"}


def test_the_process_that_starts_workers_loads_no_torch_and_says_their_target(run, pytester) -> None:
    pytester.makeconftest(
        """
        import sys
        def pytest_terminal_summary(terminalreporter, config):
            if not hasattr(config, "workerinput"):
                terminalreporter.write_line(f"here: {'torch' in sys.modules}")
        """
    )
    result = run(
        """
        def test_it(ascend_compare):
            import torch
            ascend_compare(torch.relu, torch.randn(8))
        def test_other():
            pass
        """,
        "--ascend-compare=emulated:Ascend910A",
        "--ascend-json=results.json",
        *("-n", "2"),
        subprocess=True,
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["ascend: npu:0 (emulated Ascend910A), torch 2.*", "here: False"])
    assert result.stdout.str().count("ascend: npu:0 (emulated Ascend910A), torch") == 1
