"""Which call of the target belongs to which of the golden: by the mapping, by name, by structure and order.

1. What the mapping names.
2. Equal names.
3. Structure: what is left on both sides is lined up in the order it ran. Calls line up when they do the same and return
   the same shapes: ``Mint.add`` is ``Tensor.__add__``, a ``Cell`` is a ``Module``, whatever its class is. Between
   calls that are matched already, as many calls on both sides with the same shapes are matched in order (renamed
   layers), and a call that faces several is taken for a fusion of them: its results against the last one's.
   A backward pass follows its forward pass.

What found no partner is listed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from pytest_ascend.dumps.common import Call, Unit
from pytest_ascend.dumps.divergence import forward_of
from pytest_ascend.dumps.mapping import Mapped
from pytest_ascend.dumps.msprobe import Name
from pytest_ascend.dumps.text import DumpError

__all__ = ["Match", "Matching", "match"]

_ALIASES = {
    **{"truediv": "div", "sub": "sub", "rsub": "rsub", "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"},
    **{"radd": "add", "rmul": "mul", "rtruediv": "rdiv", "multiply": "mul", "divide": "div", "subtract": "sub"},
    **{"mm": "matmul", "bmm": "matmul", "linear": "linear", "dense": "linear", "true_divide": "div"},
    **{"biasadd": "add", "concat": "cat", "reduce_mean": "mean", "reduce_sum": "sum", "batch_mat_mul": "matmul"},
}
_WRAPPERS = ("module.", "network.", "_backbone.", "model.", "_orig_mod.", "root.")
#: calls that line up by order alone are looked for among at most so many at once
_LARGEST = 20_000


@dataclass(frozen=True)
class Match:
    """A call of each side, and how they found each other.

    Attributes:
        how: ``name``, ``mapping``, ``structure``, ``order`` or ``fused``.
        golden_from: of a fused call, the first golden call in it; its inputs are that one's.
    """

    golden: str
    target: str
    how: str = "name"
    golden_from: str | None = None


@dataclass
class Matching:
    """All matches in the golden's order, and what is left of each side, in its order."""

    matches: list[Match] = field(default_factory=list)
    golden_only: list[str] = field(default_factory=list)
    target_only: list[str] = field(default_factory=list)


def match(golden: Unit, target: Unit, mapping: Mapped) -> Matching:
    """Find partners for the calls of two units."""
    names, there = golden.names(), target.names()
    left, right = dict.fromkeys(names), dict.fromkeys(there)
    found: dict[str, Match] = {}

    def take(one: Match) -> None:
        found[one.golden] = one
        left.pop(one.golden, None)
        right.pop(one.target, None)

    for name, partner in _mapped(left, right, mapping):
        take(Match(name, partner, "mapping"))
    for name in [name for name in left if name in right]:
        take(Match(name, name))
    if left and right:
        for one in _structural(golden, target, names, there, left, right, found):
            take(one)
    at = {name: i for i, name in enumerate(names)}
    covered = {
        name
        for one in found.values()
        if one.golden_from is not None
        for name in names[at[one.golden_from] : at[one.golden]]
    }
    return Matching(
        [found[name] for name in names if name in found],
        [name for name in left if name not in covered],
        list(right),
    )


# ------------------------------------------------------------------------------------------------ by the mapping


def _mapped(left: Iterable[str], right: Iterable[str], mapping: Mapped) -> list[tuple[str, str]]:
    """Pairs that the mapping names, directly or by a part of a layer's path."""
    if not mapping.layers and not mapping.apis:
        return []
    there = dict.fromkeys(right)
    alike: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name in there:
        if (parsed := Name.parse(name)) is not None:
            alike[_kind(parsed)].append(name)
    pairs: list[tuple[str, str]] = []
    seen: Counter[str] = Counter()
    for name in left:
        partner = _partner(name, mapping, there, alike, seen)
        if partner is not None:
            del there[partner]
            pairs.append((name, partner))
    return pairs


def _kind(call: Name) -> tuple[str, str, int]:
    """What calls have in common that a mapping may name together: layers of a path, whatever their class; an API."""
    if call.is_layer:
        return call.path or call.api, call.direction, call.number
    return f"{call.prefix}.{call.api}", call.direction, 0


def _partner(
    name: str,
    mapping: Mapped,
    there: dict[str, None],
    alike: dict[tuple[str, str, int], list[str]],
    seen: Counter[str],
) -> str | None:
    if (whole := mapping.apis.get(name)) is not None:
        return whole if whole in there else None
    parsed = Name.parse(name)
    if parsed is None:
        renamed = _renamed(name, mapping)
        return renamed if renamed != name and renamed in there else None
    if parsed.is_layer:
        path = mapping.apis.get(f"{parsed.prefix}.{parsed.api}") or _renamed(f"{parsed.prefix}.{parsed.api}", mapping)
        if path == f"{parsed.prefix}.{parsed.api}":
            return None
        exact = f"{path}.{parsed.direction}.{parsed.number}"
        if exact in there:
            return exact
        stem = path.rpartition(".")[0]  # the class may differ
        places = dict.fromkeys((stem.partition(".")[2], path.partition(".")[2]))
        fitting = [n for at in places for n in alike.get((at, parsed.direction, parsed.number), ()) if n in there]
        return fitting[0] if len(fitting) == 1 else None
    one = mapping.apis.get(f"{parsed.prefix}.{parsed.api}.{parsed.number}")
    if one is not None:
        exact = f"{one}.{parsed.direction}"
        return exact if exact in there else None
    every = mapping.apis.get(f"{parsed.prefix}.{parsed.api}")
    if every is None:
        return None
    key = f"{parsed.prefix}.{parsed.api}.{parsed.direction}"
    calls = alike.get((every, parsed.direction, 0), [])
    number, seen[key] = seen[key], seen[key] + 1
    exact = f"{every}.{parsed.number}.{parsed.direction}"
    if exact in there:
        return exact
    return calls[number] if number < len(calls) and calls[number] in there else None


def _renamed(path: str, mapping: Mapped) -> str:
    for golden, target in mapping.layers.items():
        found = re.sub(rf"(?<![^.]){re.escape(golden)}(?![^.])", target.replace("\\", r"\\"), path)
        if found != path:
            return found
    return path


# ------------------------------------------------------------------------------------------------ by structure


def _structural(
    golden: Unit,
    target: Unit,
    names: Sequence[str],
    there: Sequence[str],
    left: dict[str, None],
    right: dict[str, None],
    found: dict[str, Match],
) -> list[Match]:
    forward_left = [n for n in names if n in left and not _is_backward(n)]
    forward_right = [n for n in there if n in right and not _is_backward(n)]
    new = _aligned(golden, target, forward_left, forward_right)
    taken = {m.golden: m.target for m in (*found.values(), *new)}
    new += _in_gaps(golden, target, names, there, taken, left, right)
    forwards = {m.golden: m for m in (*found.values(), *new)}
    by_forward = {forward_of(n): n for n in there if n in right and _is_backward(n)}
    for name in names:
        if name in left and _is_backward(name) and (one := forwards.get(forward_of(name))) is not None:
            partner = by_forward.get(one.target)
            if partner is not None:
                first = None if one.golden_from is None else _backward_of(one.golden_from, left)
                # The backward pass runs the other way round: a fused one ends with the first call's gradients.
                if one.how == "fused" and first is not None:
                    new.append(Match(first, partner, "fused", name))
                elif one.how != "fused":
                    new.append(Match(name, partner, one.how))
    return new


def _aligned(golden: Unit, target: Unit, left: Sequence[str], right: Sequence[str]) -> list[Match]:
    """Calls that do the same and return the same shapes, lined up in order."""
    if not left or not right or len(left) > _LARGEST or len(right) > _LARGEST:
        return []
    keys = [_key(golden, n) for n in left], [_key(target, n) for n in right]
    pairs: dict[str, str] = {}
    used: set[str] = set()
    # Layers by their paths first: a path is as good as a name, whatever the class and the library are.
    paths = _unique([_place(n) for n in left], left), _unique([_place(n) for n in right], right)
    for place, name in paths[0].items():
        if place is not None and (partner := paths[1].get(place)) is not None:
            pairs[name] = partner
            used.add(partner)
    a = [(n, k) for n, k in zip(left, keys[0], strict=True) if n not in pairs]
    b = [(n, k) for n, k in zip(right, keys[1], strict=True) if n not in used]
    lined = SequenceMatcher(None, [k for _, k in a], [k for _, k in b], autojunk=False)
    for i, j, size in lined.get_matching_blocks():
        for offset in range(size):
            if a[i + offset][1] is not None:
                pairs[a[i + offset][0]] = b[j + offset][0]
    return [Match(name, pairs[name], "structure") for name in left if name in pairs]


def _in_gaps(
    golden: Unit,
    target: Unit,
    names: Sequence[str],
    there: Sequence[str],
    taken: dict[str, str],
    left: dict[str, None],
    right: dict[str, None],
) -> list[Match]:
    """What lies between two matched calls on both sides: renamed one by one, or fused."""
    order = {name: i for i, name in enumerate(there)}
    reached = set(taken.values())
    new: list[Match] = []
    gap: list[str] = []
    low = 0
    for name in [*(n for n in names if not _is_backward(n)), None]:
        if name is not None and name not in taken:
            if name in left:
                gap.append(name)
            continue
        high = order[taken[name]] if name is not None else len(there)
        if high < low:
            gap = []
            continue
        facing = [n for n in there[low:high] if n in right and n not in reached and not _is_backward(n)]
        new += _gap(golden, target, gap, facing)
        gap, low = [], high + 1 if name is not None else high
    return new


def _gap(golden: Unit, target: Unit, gap: list[str], facing: list[str]) -> list[Match]:
    pairs: list[Match] = []
    for layers in (True, False):
        a = [n for n in gap if _is_layer(n) is layers]
        b = [n for n in facing if _is_layer(n) is layers]
        if not a or not b:
            continue
        if len(a) == len(b):
            pairs += [
                Match(x, y, "order")
                for x, y in zip(a, b, strict=True)
                if (shapes := _shapes(golden, x)) and shapes == _shapes(target, y)
            ]
        elif len(b) == 1 and _shapes(golden, a[-1]) == _shapes(target, b[0]) != ():
            pairs.append(Match(a[-1], b[0], "fused", a[0]))
    return pairs


def _unique(keys: Sequence[str | None], names: Sequence[str]) -> dict[str | None, str]:
    counted = Counter(keys)
    return {key: name for key, name in zip(keys, names, strict=True) if key is not None and counted[key] == 1}


# ------------------------------------------------------------------------------------------------ what a call is


def _is_backward(name: str) -> bool:
    parsed = Name.parse(name)
    return parsed is not None and parsed.direction == "backward"


def _is_layer(name: str) -> bool:
    parsed = Name.parse(name)
    return parsed is not None and parsed.is_layer


def _backward_of(forward: str, left: dict[str, None]) -> str | None:
    name = forward.replace(".forward", ".backward")
    return name if name in left else None


def _place(name: str) -> str | None:
    """A layer's path, call and direction, without what wraps models; None for an API."""
    parsed = Name.parse(name)
    if parsed is None or not parsed.is_layer:
        return None
    path = parsed.path or parsed.api
    while (shorter := next((path.removeprefix(w) for w in _WRAPPERS if path.startswith(w)), path)) != path:
        path = shorter
    return f"{path}#{parsed.number}#{parsed.direction}"


def canonical(api: str) -> str:
    """What an API does, without its library's spelling: ``__iadd__``, ``add_`` and ``Add`` are ``add``."""
    word = api.rpartition(".")[2].strip("_").lower()
    return _ALIASES.get(word, word)


def _key(unit: Unit, name: str) -> tuple[str, tuple[tuple[int, ...], ...]] | None:
    parsed = Name.parse(name)
    shapes = _shapes(unit, name)
    if not shapes:
        return None
    what = "layer" if parsed is not None and parsed.is_layer else canonical(parsed.api if parsed else _stem(name))
    return what, shapes


def _stem(name: str) -> str:
    return re.sub(r"\d+", "", name.rpartition("/")[2].rpartition("_")[2])


def _shapes(unit: Unit, name: str) -> tuple[tuple[int, ...], ...]:
    call = _read(unit, name)
    return () if call is None else tuple(spec.shape for _, spec in call.tensors("output"))


def _read(unit: Unit, name: str) -> Call | None:
    try:
        return unit.call(name)
    except DumpError:
        return None  # said where it is compared
