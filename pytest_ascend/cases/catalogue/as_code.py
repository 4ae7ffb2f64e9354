"""The catalogue's cases as a test file that a person can read, edit and commit.

A test draws its inputs in the order in which the catalogue does, from the same seed, so they are the same to the bit.
Cases that differ in nothing but their dtype are one test with a parameter.
"""

from __future__ import annotations

import fnmatch
import keyword
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ascend.cases.catalogue.caselist import load
from pytest_ascend.cases.catalogue.choose import AS_MADE, Wish, chosen, matching, others, pending_of
from pytest_ascend.cases.catalogue.entries import Entry, Sample
from pytest_ascend.cases.code import WIDTH, CallOf, Raw, comment, on_one_line, string, written

__all__ = ["source"]

_OWN = "*"


def source(pattern: str) -> str:
    """The test file for the APIs that a pattern means, with the cases that ``--ascend-api`` runs without more options.

    Args:
        pattern: names and globs, separated by commas.

    Raises:
        ValueError: it names nothing, or what is no function of torch's.
    """
    patterns = tuple(part.strip() for part in pattern.split(",") if part.strip())
    if any(one.removeprefix("mindspore.").startswith("mint.") for one in patterns):
        raise ValueError(
            f"--api {pattern}: tests are written for torch's APIs only; run --ascend-api={pattern!r} itself"
        )
    listed = load()
    known = list(dict.fromkeys(entry.api for entry in listed.entries))
    try:
        apis = matching(patterns, known)
    except ValueError as error:
        raise ValueError(f"--api {pattern}: {error}") from None
    groups = [group for entry in listed.entries if entry.api in apis for group in _groups(entry)]
    names: Counter[str] = Counter()
    bodies: list[str] = []
    for group in groups:
        bodies += ["", "", *group.test(names)]
    absent = {entry.api for entry in listed.entries if entry.api in apis} - {group.entry.api for group in groups}
    left_out = [f"# left out: {comment(api)}: no case in the dtypes that --ascend-api takes" for api in sorted(absent)]
    globs = [one for one in patterns if one not in known]
    rest = {} if not globs else others(listed, globs)
    named = {name: why for name, why in rest.items() if any(fnmatch.fnmatchcase(name, one) for one in globs)}
    left_out += [f"# left out: {comment(name)}: {comment(why)}" for name, why in named.items() if name not in apis]
    count = sum(len(group.cases) for group in groups)
    return "\n".join([*_head(pattern, count), *left_out, *bodies, ""])


def _head(pattern: str, count: int) -> Iterator[str]:
    yield f'"""{count} cases of {comment(pattern)}, on inputs of many sizes, kinds and layouts.'
    yield ""
    yield "Run them with `pytest --ascend-compare`, edit them as you like."
    yield '"""'
    yield ""
    yield "from __future__ import annotations"
    yield ""
    yield "import pytest"
    yield "import torch"
    yield ""
    yield "from pytest_ascend import Draw"
    yield ""


@dataclass
class _Group:
    """Cases that differ in their dtype alone."""

    entry: Entry
    number: int
    sample: Sample
    layout: str
    cases: list[tuple[str, int]] = field(default_factory=list)
    """Dtype, and the seed of the call."""

    def test(self, names: Counter[str]) -> Iterator[str]:
        """The lines of the test."""
        shown = self.sample.family or self.layout if self.layout == "as_given" else self.layout
        words = [self.entry.api.removeprefix("torch."), shown, str(self.number), self.entry.variant]
        name = "test_" + re.sub(r"[\W_]+", "_", "_".join(filter(None, words)).lower(), flags=re.ASCII)
        names[name] += 1
        name = name if names[name] == 1 else f"{name}_{names[name]}"
        marks = [f"pytest.param({string(dtype)}, {seed}, id={string(dtype)})" for dtype, seed in self.cases]
        yield '@pytest.mark.parametrize(("dtype", "seed"), ['
        yield from (f"    {mark}," for mark in marks)
        yield "])"
        yield f"def {name}(ascend_compare, dtype, seed):"
        yield from _Body(self).lines()


def _groups(entry: Entry) -> Iterator[_Group]:
    found: dict[tuple[int, str], _Group] = {}
    for dtype, number, sample, layout in chosen(entry, Wish()):
        ident = pending_of(entry, number, sample, dtype, layout, "eager").id
        group = found.setdefault((number, layout), _Group(entry, number, sample, layout))
        group.cases.append((dtype, zlib.crc32(ident.encode())))
    yield from found.values()


class _Body:
    """The lines of one test, its inputs drawn in the catalogue's order."""

    def __init__(self, group: _Group) -> None:
        self.group = group
        self.made: list[str] = []
        self.tensors: list[str] = []

    def lines(self) -> Iterator[str]:
        """All of them."""
        entry, sample = self.group.entry, self.group.sample
        args = [self._value(spec) for spec in sample.args]
        kwargs = {name: self._value(spec) for name, spec in sample.kwargs.items()}
        arguments = [("", one) for one in args] + _keywords(kwargs)
        if self.group.layout not in AS_MADE:
            names = ", ".join(self.tensors)
            self.made.append(f"{names} = draw.laid_out({string(self.group.layout)}, {names})")
        fn: Any = Raw(entry.api)
        check = "ascend_compare.using(seed=seed)"
        if sample.made is not None:
            check = "ascend_compare.using(seed=seed, checkpoints=())"
            fn = Raw("module")
            self.made += self._module(entry.api, sample.made)
        elif _is_property(entry.api):
            fn = Raw(f"lambda tensor: tensor.{entry.api.rpartition('.')[2]}")
        elif not self.tensors:
            call = on_one_line(CallOf(entry.api, [*arguments, ("device", Raw("like.device"))]))
            fn = Raw(f"lambda like: {call}")
            arguments = [("", CallOf("torch.empty", [("", 0), ("dtype", Raw("draw.dtype"))]))]
        yield f"    draw = Draw(dtype, seed={entry.seed(self.group.number)})"
        yield from (f"    {one}" for one in self.made)
        yield from written(CallOf(check, [("", fn), *arguments]), 4)

    def _module(self, api: str, made: Mapping[str, Any]) -> Iterator[str]:
        arguments: list[tuple[str, Any]] = [("", Raw(api)), *(("", self._value(one)) for one in made["a"])]
        if made["t"]:
            arguments.append(("training", True))
        if ".Lazy" in api:
            first = _Body(self.group)
            values = [first._value(spec) for spec in self.group.sample.args]
            inline = {one.partition(" = ")[0]: one.partition(" = ")[2] for one in first.made}
            shown = [inline.get(v.text, v.text) if isinstance(v, Raw) else on_one_line(v) for v in values]
            arguments.append(("first_call", Raw(f"lambda draw: [{', '.join(shown)}]")))
        arguments += _keywords({name: self._value(one) for name, one in made["k"].items()})
        written_out = list(written(CallOf("module = draw.module", arguments), 4))
        yield from (line[4:] for line in written_out)

    # -- arguments ------------------------------------------------------------------------------------------------

    def _value(self, spec: Any) -> Any:
        """One argument as code; a tensor gets a line and a name of its own."""
        if isinstance(spec, list):
            return tuple(self._value(one) for one in spec)
        if not isinstance(spec, dict):
            return spec
        (tag, body), *_ = spec.items()
        if tag == "T":
            return self._tensor(body)
        if tag == "l":
            return [self._value(one) for one in body]
        if tag == "m":
            inner = ", ".join(f"{on_one_line(self._value(k))}: {on_one_line(self._value(v))}" for k, v in body)
            return Raw("{" + inner + "}")
        if tag == "dt":
            return Raw(self._dtype(body))
        if tag in ("f", "c"):
            return _number(spec)
        if tag == "sl":
            return slice(*map(_number, body))
        return ... if tag == "e" else Raw(f"torch.{body}" if tag == "tc" else body)

    def _dtype(self, name: str) -> str:
        return "draw.dtype" if name == _OWN else f"torch.{name}"

    def _tensor(self, spec: Mapping[str, Any]) -> Raw:
        name = _variable(len(self.tensors))
        self.tensors.append(name)
        shape, after = spec["s"], ""
        if "st" in spec:
            strides, offset, extent = spec["st"]
            after = f".as_strided({on_one_line(tuple(shape))}, {on_one_line(tuple(strides))}, {offset})"
            shape = [extent]
        if spec.get("g"):
            after += ".requires_grad_()"
        code = self._drawn(spec["v"], tuple(shape), spec["d"])
        self.made += [
            line[4:] for line in written(CallOf(f"{name} = {code.name}", code.arguments, code.after + after), 4)
        ]
        return Raw(name)

    def _drawn(self, values: Sequence[Any], shape: tuple[int, ...], dtype: str) -> CallOf:
        kind, *given = values
        other = [] if dtype == _OWN else [("dtype", Raw(self._dtype(dtype)))]
        drawn = {"u": "uniform", "i": "integers", "b": "booleans", "pd": "positive_definite"}
        if kind in drawn:
            return CallOf(f"draw.{drawn[kind]}", [("", shape), *(("", one) for one in given), *other])
        if kind == "k":
            return CallOf("draw.full", [("", shape), ("", _number(given[0])), *other])
        if kind in ("x", "z"):
            numbers = [_number(one) for one in given[0]]
            if kind == "z":
                numbers = [complex(re, im) for re, im in zip(numbers[::2], numbers[1::2], strict=True)]
            shaped = [] if len(shape) == 1 else [("shape", shape)]
            return CallOf("draw.values", [("", _rows(numbers)), *shaped, *other])
        return CallOf("draw.kind", [("", kind), ("", shape), *other])


def _keywords(kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Keyword arguments; those that are no names in Python in a dict."""
    odd = {name: value for name, value in kwargs.items() if not name.isidentifier() or keyword.iskeyword(name)}
    plain = [(name, value) for name, value in kwargs.items() if name not in odd]
    return [*plain, *([("", Raw(f"**{on_one_line(odd)}"))] if odd else [])]


def _rows(numbers: list[Any]) -> Any:
    """A list of numbers; a long one over several lines of code."""
    text = on_one_line(numbers)
    if len(text) <= WIDTH - 30:
        return numbers
    rows: list[str] = [""]
    for number in numbers:
        piece = f"{on_one_line(number)}, "
        if len(rows[-1]) + len(piece) > WIDTH - 16:
            rows.append("")
        rows[-1] += piece
    return [Raw(row.rstrip(", ")) for row in rows]


def _number(spec: Any) -> Any:
    """A number of the list: itself, or one that JSON hasn't."""
    if isinstance(spec, dict):
        (tag, body), *_ = spec.items()
        return float(body) if tag == "f" else complex(*map(_number, body))
    return spec


def _variable(number: int) -> str:
    names = ("x", "y", "z", "u", "v", "w")
    return names[number] if number < len(names) else f"t{number}"


def _is_property(api: str) -> bool:
    from pytest_ascend.cases.catalogue.names import is_property, resolve

    try:
        return is_property(resolve(api))
    except AttributeError:
        return False
