"""Names of conditions and of files: different for what differs, the same for what is the same, safe on any disk."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.perf import fingerprint as module
from pytest_ascend.perf.fingerprint import FIELDS, file_name, fingerprint

SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
values = st.none() | st.text(max_size=20) | st.integers(0, 99) | st.dictionaries(st.text(max_size=5), st.booleans())
environments = st.dictionaries(st.sampled_from(FIELDS), values)


def test_it_is_readable(environment) -> None:
    assert re.fullmatch(r"ascend910b-cann8\.0\.0-torch2\.5\.1-py3\.11\.7-[0-9a-f]{10}", fingerprint(environment))
    assert fingerprint({"device": "cpu", "python": "3.12"}).startswith("cpu-py3.12-")


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_counts(name: str, environment) -> None:
    assert fingerprint({**environment, name: "other"}) != fingerprint(environment)


def test_order_and_absence_do_not(environment) -> None:
    again = dict(reversed(environment.items()))
    assert fingerprint({**again, "modes": {}, "driver": None, "config": ""}) == fingerprint(environment)


@pytest.mark.parametrize("name", ["hz_actual", "clock", "temperature", "load"])
def test_what_changes_by_the_minute_is_refused(name: str, environment) -> None:
    with pytest.raises(ValueError, match=f"{name!r}, which is no part of a fingerprint"):
        fingerprint({**environment, name: 1})


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="holds what JSON can't"):
        fingerprint({"modes": {"a": float("nan")}})
    with pytest.raises(ValueError, match="holds what JSON can't"):
        fingerprint({"config": object()})


@given(environments)
def test_any_environment_has_a_safe_name(environment) -> None:
    name = fingerprint(environment)
    assert SAFE.fullmatch(name)
    assert len(name) <= 71


@given(st.text(min_size=1, max_size=300))
def test_any_test_has_a_safe_name(test: str) -> None:
    name = file_name(test)
    assert SAFE.fullmatch(name)
    assert len(name) <= 98
    assert name.endswith(".json")


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_two_tests_never_share_a_file(one: str, two: str) -> None:
    assert (file_name(one) == file_name(two)) == (one == two)


def test_ids_that_differ_in_case_or_in_odd_characters_only() -> None:
    tests = [
        "a.py::t[X]",
        "a.py::t[x]",
        "a.py::t[/]",
        "a.py::t[:]",
        "a.py::t[..]",
        "../a.py::t[x]",
        "a.py::t[x] ",
        "a::t[x]",
    ]
    assert len({file_name(test).casefold() for test in tests}) == len(tests)
    assert file_name("tests/test_a.py::test_b[1-x]").startswith("tests_test_a--test_b_1-x-")


def test_a_test_needs_an_id() -> None:
    with pytest.raises(ValueError, match="without an id"):
        file_name("")


def test_this_machine(tmp_path, monkeypatch) -> None:
    driver, cpus = tmp_path / "version.info", tmp_path / "cpuinfo"
    driver.write_text("Version=24.1.rc2\nascendhal_version=7.35.19\n")
    cpus.write_text(
        "processor\t: 0\nBogoMIPS\t: 200.00\nCPU implementer\t: 0x48\nCPU variant\t: 0x1\nCPU part\t: 0xd01\n"
    )
    monkeypatch.setattr(module, "_DRIVER", driver)
    monkeypatch.setattr(module, "_CPUS", cpus)
    card = {"device": "npu:3", "soc": "Ascend910B", "emulated": False, "modes": {"hf32_conv": True},
            "versions": {"torch": "2.5.1", "torch_npu": "2.5.1", "cann": "8.0.0", "python": "3.11.7"}}  # fmt: skip
    found = module.environment(card, threads=1, config={"jit_compile": False})
    assert found == {
        "device": "npu", "soc": "Ascend910B", "cann": "8.0.0", "driver": "24.1.rc2", "torch": "2.5.1",
        "torch_npu": "2.5.1", "python": "3.11.7", "cpu": "0x48 0xd01 0x1", "threads": 1, "modes": {"hf32_conv": True},
        "config": {"jit_compile": False},
    }  # fmt: skip
    cpus.write_text("model name\t: A CPU @ 2.00GHz\nmodel name\t: A CPU @ 2.00GHz\ncpu MHz\t: 1234.5\n")
    emulated = module.environment({"device": "npu:0", "emulated": True}, threads=1)
    assert (emulated["device"], emulated["cpu"], emulated["driver"]) == ("emulated npu", "A CPU @ 2.00GHz", None)
    cpus.unlink()
    assert module.environment({}, threads=2)["cpu"]
    assert fingerprint(emulated) != fingerprint(found)


def test_a_machine_equals_itself() -> None:
    here = module.environment({"device": "cpu"}, threads=1)
    assert fingerprint(here) == fingerprint(module.environment({"device": "cpu"}, threads=1))
