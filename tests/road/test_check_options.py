"""Options are checked where they are written, not where they are used."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from pytest_ascend.options import CRITERIA, LAYOUTS, CheckOptions


def test_defaults_are_the_documented_ones():
    options = CheckOptions()
    assert (options.target, options.criterion, options.backward, options.repeats) == ("auto", "auto", "auto", 1)
    assert options.layouts == ("as_given",)
    assert options.reference is options.seed is options.checkpoints is None


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(TypeError) as caught:
        CheckOptions(criterium="auto")
    message = str(caught.value)
    assert "'criterium'" in message
    assert "did you mean 'criterion'" in message
    assert all(name in message for name in CheckOptions.names())


def test_replace_keeps_the_rest_and_validates():
    options = CheckOptions(criterion="cosine", cosine=0.99)
    assert options.replace(repeats=3) == CheckOptions(criterion="cosine", cosine=0.99, repeats=3)
    with pytest.raises(TypeError, match="repeat"):
        options.replace(repeat=3)
    with pytest.raises(ValueError, match="repeats"):
        options.replace(repeats=0)


def test_options_are_frozen_hashable_copyable_and_picklable():
    options = CheckOptions(layouts=["contiguous", "sliced"], checkpoints=["layer*"])
    with pytest.raises(AttributeError):
        options.seed = 3  # type: ignore[misc]
    assert hash(options) == hash(copy.deepcopy(options))
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cosine", float("nan")),
        ("cosine", 1.5),
        ("max_abs", -1e-3),
        ("max_abs", float("inf")),
        ("rtol", -1.0),
        ("atol", float("nan")),
        ("repeats", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("criterion", "cosin"),
        ("layouts", "transpose"),
        ("layouts", ()),
        ("backward", "yes"),
    ],
)
def test_a_value_out_of_range_names_the_option(name, value):
    with pytest.raises(ValueError, match=name):
        CheckOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cosine", "0.9"),
        ("cosine", True),
        ("repeats", 2.0),
        ("repeats", True),
        ("seed", "1"),
        ("layouts", 3),
        ("checkpoints", [1]),
        ("checkpoints", 7),
        ("reference", "torch.add"),
        ("target", ""),
        ("target", None),
    ],
)
def test_a_value_of_the_wrong_type_names_the_option(name, value):
    with pytest.raises(TypeError, match=name):
        CheckOptions(**{name: value})


def test_a_misspelt_criterion_gets_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        CheckOptions(criterion="cosin")


def test_every_listed_criterion_and_layout_is_accepted():
    for criterion in CRITERIA:
        assert CheckOptions(criterion=criterion).criterion == criterion
    assert CheckOptions(layouts=LAYOUTS).layouts == LAYOUTS


def test_the_judge_knows_the_same_criteria_and_the_cases_the_same_layouts():
    from pytest_ascend.cases.layouts import relay
    from pytest_ascend.judge import standards

    assert standards.CRITERIA == CRITERIA
    import torch

    for layout in LAYOUTS:
        relay(torch.ones(2, 2), layout)  # an unknown one raises


def test_one_name_is_a_list_of_one():
    options = CheckOptions(layouts="sliced", checkpoints="encoder.*")
    assert options.layouts == ("sliced",)
    assert options.checkpoints == ("encoder.*",)
    assert CheckOptions(checkpoints=False).checkpoints == ()
    assert CheckOptions(checkpoints=True).checkpoints is True


def test_importing_options_and_targets_leaves_torch_out():
    code = (
        "import sys, pytest_ascend.options, pytest_ascend.targets, pytest_ascend.targets.base;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
