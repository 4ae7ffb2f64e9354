"""Stored sessions: their file's format, joining those of two branches, and files that hold something else."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ascend.perf import PerfVerdict, decide_history
from pytest_ascend.perf.baseline import Baseline, BaselineError, Session, Timings, merged, new_id

from .stored import ENVIRONMENT, make_session

seconds = st.floats(1e-9, 1e3)
errors = st.floats(0, 1e300)
names = st.text(min_size=1, max_size=12)

keys = st.sampled_from(["schema", "test", "environment", "sessions", "id", "timings", "a"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


@st.composite
def sessions(draw: st.DrawFn, name: str | None = None) -> Session:
    timings = {}
    for metric in draw(st.sets(st.sampled_from(["device", "wall"]))):
        medians = draw(st.lists(seconds, min_size=1, max_size=4))
        timings[metric] = Timings(tuple(medians), tuple(medians), draw(st.dictionaries(names, seconds, max_size=2)))
    found = draw(st.dictionaries(names, st.dictionaries(names, errors, max_size=2), max_size=2))
    stamp = f"2026-01-01T{draw(st.integers(0, 23)):02d}:00:00+0{draw(st.integers(0, 9))}:00"
    return Session(name or draw(names), stamp, draw(names), timings, found)


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    ids = draw(st.sets(st.sampled_from(string.ascii_lowercase[:6])))
    return Baseline("t", ENVIRONMENT, tuple(draw(sessions(name)) for name in sorted(ids)))


class TestFormat:
    @given(st.text(min_size=1, max_size=50), st.lists(sessions(), unique_by=lambda s: s.id, max_size=4))
    def test_what_is_written_is_read(self, test: str, stored: list[Session]) -> None:
        baseline = Baseline(test, ENVIRONMENT, tuple(stored))
        text = baseline.to_text()
        assert Baseline.from_plain(json.loads(text), "f") == baseline
        assert Baseline.from_plain(json.loads(text), "f").to_text() == text

    def test_numbers_share_a_line_and_texts_stay(self) -> None:
        baseline = Baseline("t[ 1, 2 ]", ENVIRONMENT, (make_session(1, 0.25),))
        text = baseline.to_text()
        assert '"medians": [0.25, 0.25025' in text
        assert '"test": "t[ 1, 2 ]"' in text
        assert text.endswith("}\n")

    def test_keys_are_sorted(self) -> None:
        plain = json.loads(Baseline("t", dict(reversed(ENVIRONMENT.items())), (make_session(1),)).to_text())
        assert list(plain) == sorted(plain)
        assert list(plain["environment"]) == sorted(ENVIRONMENT)
        assert list(plain["sessions"][0]) == sorted(plain["sessions"][0])

    def test_a_newer_schema_says_to_upgrade(self) -> None:
        plain = {**json.loads(Baseline("t", ENVIRONMENT).to_text()), "schema": 2, "more": 1}
        with pytest.raises(BaselineError, match=r"^f: its schema 2 is newer than 1, which this version reads: upgrade"):
            Baseline.from_plain(plain, "f")

    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            ((), [], "the file is no object"),
            (("schema",), "1", "schema is '1' and not 1"),
            (("schema",), True, "schema is 'True' and not 1"),
            (("schema",), 0, "schema is '0' and not 1"),
            (("extra",), 1, "the file has 'extra'"),
            (("test",), 5, "test is no text"),
            (("test",), "x" * 2000, "test is no text of at most 1200"),
            (("environment",), None, "environment is no object"),
            (("environment", "hz_actual"), 1, "'hz_actual', which is no part of a fingerprint"),
            (("sessions",), {}, "sessions is no list"),
            (("sessions", 1, "id"), "s1", "two sessions have the same id"),
            (("sessions", 0, "id"), "", "a session without an id"),
            (("sessions", 0, "date"), "yesterday", "date 'yesterday': give ISO 8601"),
            (("sessions", 0, "date"), "2026-01-01T00:00:00", "with a time zone"),
            (("sessions", 0, "commit"), None, "session 0: commit is no text"),
            (("sessions", 0, "timings"), [], "session 0: timings is no object"),
            (("sessions", 0, "timings", "cpu"), {"medians": [1], "minima": [1]}, "metric 'cpu'"),
            (("sessions", 0, "timings", "device"), {"medians": [1], "minima": []}, "1 medians and 0 minima"),
            (("sessions", 0, "timings", "device", "mean"), [1], "session 0: device has 'mean'"),
            (("sessions", 0, "timings", "device", "medians", 2), 0, "a timing of 0 s"),
            (("sessions", 0, "timings", "device", "medians", 2), -1.0, "a timing of -1.0 s"),
            (("sessions", 0, "timings", "device", "medians", 2), float("nan"), "a timing of nan s"),
            (("sessions", 0, "timings", "device", "medians", 2), 10**400, "a timing of 1000"),
            (("sessions", 0, "timings", "device", "medians", 2), "1", "a timing of '1' s"),
            (("sessions", 0, "timings", "device", "medians", 2), True, "a timing of True s"),
            (("sessions", 0, "timings", "device", "sentinels"), {"k": 0}, "a timing of 0 s"),
            (("sessions", 0, "timings", "device", "medians"), [1.0] * 10_001, "10001 entries"),
            (("sessions", 0, "timings", "device", "minima", 2), 2.0, "a minimum of 2.0 s above the median of 0.00"),
            (("sessions", 0, "errors"), {"a": []}, "errors of a is no object"),
            (("sessions", 0, "errors"), {"a": {"rmse": float("inf")}}, "rmse of a is inf"),
            (("sessions", 0, "errors"), {"a": {"rmse": -1}}, "rmse of a is -1"),
        ],
    )
    def test_a_file_of_something_else_is_one_clear_error(self, path: tuple[Any, ...], value: Any, said: str) -> None:
        plain = json.loads(Baseline("t", ENVIRONMENT, (make_session(1), make_session(2))).to_text())
        at = plain
        for key in path[:-1]:
            at = at[key]
        if path:
            at[path[-1]] = value
        else:
            plain = value
        with pytest.raises(BaselineError) as error:
            Baseline.from_plain(plain, "b/f.json")
        message = str(error.value)
        assert message.startswith("b/f.json: it is no baseline: ")
        assert said in message
        assert message.endswith("; restore it from version control, or delete it and save a new one")

    @given(values)
    def test_any_value_is_a_baseline_or_an_error(self, plain: Any) -> None:
        said = ""
        try:
            Baseline.from_plain(plain, "f")
        except BaselineError as error:
            said = str(error)
        assert said[:3] in ("", "f: ")


class TestSessions:
    def test_they_are_in_the_order_of_their_dates(self) -> None:
        east = make_session(1, id="a", date="2026-01-01T08:00:00+08:00")  # midnight in UTC
        west = make_session(1, id="b", date="2025-12-31T23:30:00+00:00")
        assert [s.id for s in Baseline("t", {}, (east, west)).sessions] == ["b", "a"]

    def test_the_last_ones_are_kept(self) -> None:
        baseline = Baseline("t", {})
        for number in range(8):
            baseline = baseline.with_session(make_session(number), keep=5)
        assert [s.id for s in baseline.sessions] == ["s3", "s4", "s5", "s6", "s7"]
        assert baseline.last(0).sessions == ()

    def test_what_two_processes_stored_of_one_session_is_joined(self) -> None:
        timed, judged = make_session(1, errors={}), make_session(1, timings={})
        for order in ((timed, judged), (judged, timed)):
            baseline = Baseline("t", {})
            for one in order:
                baseline = baseline.with_session(one)
            assert baseline.sessions == (make_session(1),)

    def test_the_history_rule_takes_them(self) -> None:
        baseline = Baseline("t", {}, tuple(make_session(n, 1e-3 * (1 + n / 5000)) for n in range(12)))
        known = baseline.samples("device")
        assert len(known) == 12
        one = baseline.sessions[3].timings["device"]
        assert [sorted(process)[1] for process in known[3]] == list(one.medians)
        assert [min(process) for process in known[3]] == list(one.minima)
        assert decide_history(known, [[1.001e-3]] * 5).verdict is PerfVerdict.OK
        assert decide_history(known, [[1.1e-3]] * 5).verdict is PerfVerdict.REGRESSED
        assert baseline.samples("wall") == []
        assert baseline.figures("torch.softmax/float16", "max_abs_error") == [1e-3] * 12
        assert baseline.figures("torch.softmax/float32", "max_abs_error") == []

    def test_ids_differ(self) -> None:
        assert len({new_id() for _ in range(100)}) == 100


class TestMerge:
    @given(baselines(), baselines(), baselines())
    def test_it_is_the_same_from_either_side(self, base: Baseline, ours: Baseline, theirs: Baseline) -> None:
        assert merged(base, ours, theirs) == merged(base, theirs, ours)
        assert merged(None, ours, theirs) == merged(None, theirs, ours)

    @given(baselines(), baselines())
    def test_without_a_common_start_no_session_is_lost(self, ours: Baseline, theirs: Baseline) -> None:
        ids = {s.id for s in merged(None, ours, theirs).sessions}
        assert ids == {s.id for s in (*ours.sessions, *theirs.sessions)}

    @given(baselines(), baselines())
    def test_what_only_one_side_changed_is_taken_from_it(self, base: Baseline, theirs: Baseline) -> None:
        assert merged(base, base, theirs) == theirs
        assert merged(base, theirs, theirs) == theirs

    def test_both_sides_sessions_are_kept_and_removed_ones_stay_removed(self) -> None:
        old, one, two = make_session(1), make_session(2), make_session(3)
        base = Baseline("t", {}, (old,))
        ours, theirs = Baseline("t", {}, (old, one)), Baseline("t", {}, (two,))
        assert [s.id for s in merged(base, ours, theirs).sessions] == ["s2", "s3"]

    def test_one_that_was_changed_since_is_not_lost(self) -> None:
        old, changed = make_session(1), make_session(1, commit="other")
        base, gone = Baseline("t", {}, (old,)), Baseline("t", {})
        assert merged(base, Baseline("t", {}, (changed,)), gone).sessions == (changed,)

    def test_other_tests_are_refused(self) -> None:
        with pytest.raises(ValueError, match="different tests or environments: t and u"):
            merged(None, Baseline("t", {}), Baseline("u", {}))
        with pytest.raises(ValueError, match="different tests or environments"):
            merged(None, Baseline("t", {}), Baseline("t", {"device": "cpu"}))
