"""Factorisations and solutions, judged by the equations that define them.

The singular vectors of a matrix are unique up to sign or phase only, the eigenvalues of a general matrix come in any
order, pivots may fall either way on a tie, and the solution of an ill-conditioned system has few right digits. Two
right libraries differ there as much as a wrong one does. What must hold is an equation: ``U S V^H = A``, ``A v = w v``,
``Q^H Q = I``. Its *residual* is computed in float64 from the golden's inputs and the values at hand, element by
element, in units of the roundoff of the values' dtype beside the norms of what is multiplied; backward stable
algorithms leave about one (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002, chapters 7,
9, 14, 19; LAPACK Users' Guide, 3rd ed., chapter 4). A result is right when no residual is more than :data:`RATIO`
times the CPU's own for the same matrix, or more than :data:`FEW` units, whichever is more. An equation can't be
satisfied by a wrong factor: a column of U with the other sign needs the same of V, columns that are scaled or rotated
break an equation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["Call", "Definition", "Equation", "Gauge", "align", "canonical", "find", "judge", "match"]

Tensor = torch.Tensor

#: A residual may be so many times the CPU's own, and is no fault below so many units.
RATIO, FEW = 3.0, 4.0
#: Of functions that start from random numbers: the CPU's own run is one of many.
RANDOM_RATIO = 16.0


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a function: its arguments by name and its results by name, all tensors in float64 or complex128.

    Attributes:
        given: arguments; those left out are missing.
        found: results; None where there is none to be had.
        roundoff: the unit roundoff of the results' own dtype.
    """

    given: Mapping[str, Any]
    found: Mapping[str, Tensor | None]
    roundoff: float

    def __getitem__(self, name: str) -> Tensor:
        value = self.found.get(name)
        if value is None:
            raise Missing(name)
        return value


class Missing(KeyError):
    """A result that an equation needs isn't there, so the equation says nothing."""


@dataclasses.dataclass(frozen=True)
class Equation:
    """What must vanish: ``error`` (..., m, n), beside ``scale`` (broadcast against it), times the roundoff."""

    text: str
    error: Tensor
    scale: Tensor | float = 1.0

    def residual(self, roundoff: float) -> Tensor:
        """The largest residual of each matrix, in units; infinite where it isn't a number."""
        scale = self.scale if isinstance(self.scale, Tensor) else torch.tensor(float(self.scale), dtype=torch.float64)
        units = self.error.abs().double() / (roundoff * scale.double() + _TINY)
        units = torch.where(self.error == 0, 0.0, units).nan_to_num(nan=math.inf, posinf=math.inf)
        if not units.numel():
            return torch.zeros(self.error.shape[:-2], dtype=torch.float64)
        return units.amax((-2, -1)) if units.dim() >= 2 else units.amax()


_TINY = 1e-300


@dataclasses.dataclass(frozen=True)
class Gauge:
    """Along which axis of a result its vectors lie side by side, and whether it takes the conjugate of their phase."""

    axis: int
    conjugate: bool = False
    phase: bool = True


@dataclasses.dataclass(frozen=True)
class Definition:
    """What defines the results of a function.

    Attributes:
        names: of the arguments, in their order.
        results: names in their order.
        free: results whose values aren't unique, or have few right digits, to why.
        equations: what must hold.
        gauge: for results that are unique up to the sign or phase of vectors: where those lie; the first measures it.
        order: the result by whose values vectors that come in any order are matched.
        random: whether the function starts from random numbers.
    """

    names: tuple[str, ...]
    results: tuple[str, ...]
    free: Mapping[str, str]
    equations: Callable[[Call], Sequence[Equation | Callable[[], Equation]]]
    gauge: Mapping[str, Gauge] = dataclasses.field(default_factory=dict)
    order: str = ""
    random: bool = False

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], found: Mapping[str, Any], dtype: Any) -> Call:
        """The call in float64: arguments by their names, positional ones first.

        ``dtype`` is the results' own.
        """
        given = dict(zip(self.names, args, strict=False))
        aliases = {"input": self.names[0], "self": self.names[0], "other": self.names[1 % len(self.names)]}
        given |= {name if name in self.names else aliases.get(name, name): value for name, value in kwargs.items()}
        real = dtype.to_real() if dtype.is_complex else dtype
        roundoff = torch.finfo(real).eps / 2 if real.is_floating_point else 0.0
        return Call(_wide(given), _wide(found), roundoff)


def _wide(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _as_wide(v) if isinstance(v, Tensor) else v for k, v in values.items()}


def _as_wide(value: Tensor) -> Tensor:
    value = value.detach().to("cpu")
    if value.is_complex():
        return value.to(torch.complex128).resolve_conj()
    return value.double() if value.is_floating_point() else value


def judge(definition: Definition, actual: Call, benchmark: Call | None, texts: bool = False) -> tuple[str, str]:
    """Whether a call's equations hold about as well as the CPU's own.

    Returns:
        What doesn't hold, or nothing; and the equations that were asked.
    """
    asked, wrong, worst = [], "", 0.0
    ratio = RANDOM_RATIO if definition.random else RATIO
    ours = _residuals(definition, actual)
    theirs = _residuals(definition, benchmark) if benchmark is not None else {}
    for text, residual in ours.items():
        asked.append(text)
        own = theirs.get(text, torch.zeros((), dtype=torch.float64))
        own = own if own.shape == residual.shape else own.amax() if own.numel() else torch.zeros(())
        limit = (ratio * own.nan_to_num(posinf=0.0)).clamp_min(FEW)
        over = residual / limit
        if not over.numel() or not float(over.max()) > max(1.0, worst):
            continue
        worst, at = float(over.max()), int(over.argmax())
        size, most = float(residual.reshape(-1)[at]), float(limit.expand_as(residual).reshape(-1)[at])
        bad = f" for {int((over > 1).sum())} of {over.numel()} matrices" if over.numel() > 1 else ""
        wrong = f"{text} doesn't hold{bad}: the residual is {size:.3g} units, and may be {most:.3g}"
    return wrong, ", ".join(asked)


def _residuals(definition: Definition, call: Call) -> dict[str, Tensor]:
    found = {}
    for one in definition.equations(call):
        try:
            equation = one() if callable(one) else one
            found[equation.text] = equation.residual(call.roundoff)
        except (Missing, RuntimeError):  # a shape that isn't this definition's, or singular where it was to be inverted
            continue
    return found


# --- alignment ------------------------------------------------------------------------------------------------------


def match(golden: Tensor, actual: Tensor) -> Tensor:
    """Which element of ``actual`` (..., n) belongs to each of ``golden``, as indices (..., n): nearest pairs first."""
    distance = (golden.unsqueeze(-1) - actual.unsqueeze(-2)).abs().nan_to_num(nan=math.inf)
    n = golden.shape[-1]
    rows = distance.reshape(-1, n, n)
    index = torch.arange(n).repeat(rows.shape[0], 1)
    for row, table in enumerate(rows):
        free_left, free_right = [True] * n, [True] * n
        for flat in table.reshape(-1).argsort(stable=True).tolist():
            i, j = divmod(flat, n)
            if free_left[i] and free_right[j]:
                index[row, i] = j
                free_left[i] = free_right[j] = False
    return index.reshape(golden.shape)


def align(
    definition: Definition, golden: Mapping[str, Tensor | None], actual: Mapping[str, Tensor | None]
) -> dict[str, tuple[int, Tensor | None, Tensor | None]]:
    """How each result of ``actual`` has to be changed to have the golden's order and signs (or phases).

    Returns:
        By result: the axis, the indices to take along it (or None), and what to multiply by (or None), both with the
        result's batch dimensions and one for the axis.
    """
    found: dict[str, tuple[int, Tensor | None, Tensor | None]] = {}
    order = None
    if definition.order:
        left, right = golden.get(definition.order), actual.get(definition.order)
        if left is not None and right is not None and left.shape == right.shape:
            order = match(left, right)
            found[definition.order] = (-1, order, None)
    phase = None
    for name, gauge in definition.gauge.items():
        left, right = golden.get(name), actual.get(name)
        if left is None or right is None or left.shape != right.shape:
            continue
        if order is not None:
            right = _take(right, gauge.axis, order)
        if phase is None:
            other = -1 if gauge.axis == -2 else -2
            inner = (right.conj() * left).sum(other)
            if gauge.conjugate:
                inner = inner.conj()
            phase = torch.where(inner == 0, torch.ones_like(inner), inner / inner.abs().clamp_min(_TINY))
        n = right.shape[gauge.axis]
        own = phase.conj() if gauge.conjugate else phase
        if own.shape[-1] < n:  # vectors that have no counterpart stay as they are
            own = torch.cat([own, torch.ones(*own.shape[:-1], n - own.shape[-1], dtype=own.dtype)], -1)
        found[name] = (gauge.axis, order, own[..., :n])
    return found


def _take(value: Tensor, axis: int, index: Tensor) -> Tensor:
    """Vectors along an axis, batch by batch."""
    shaped = index.unsqueeze(-1 if axis == -2 else -2).expand(value.shape)
    return value.gather(axis, shaped)


# --- equations ------------------------------------------------------------------------------------------------------


def _norm(value: Tensor) -> Tensor:
    """Frobenius norm, (..., 1, 1)."""
    return value.abs().square().sum((-2, -1), keepdim=True).sqrt()


def _columns(value: Tensor) -> Tensor:
    """Norm of each column, (..., 1, n)."""
    return value.abs().square().sum(-2, keepdim=True).sqrt()


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _orthonormal(value: Tensor, text: str) -> Equation:
    """Columns of length 1 at right angles."""
    return Equation(text, value.mH @ value - _eye(value.shape[-1]), math.sqrt(max(value.shape[-2], 1)))


def _below(value: Tensor, text: str) -> Equation:
    """Nothing below the diagonal, to the last bit."""
    return Equation(text, value.tril(-1) * math.inf if bool(value.tril(-1).any()) else value.tril(-1))


def _descending(values: Tensor, text: str) -> Equation:
    rise = (values[..., 1:] - values[..., :-1]).clamp_min(0).unsqueeze(-2)
    return Equation(text, rise, values.abs().amax(-1, keepdim=True).unsqueeze(-2) if values.numel() else 1.0)


def _given(call: Call, name: str) -> Tensor:
    value = call.given.get(name)
    if not isinstance(value, Tensor):
        raise Missing(name)
    return value


def _svd_of(u: Tensor, s: Tensor, vh: Tensor, a: Tensor) -> list[Equation]:
    k = s.shape[-1]
    product = (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]
    return [
        Equation("U S V^H = A", product - a, _norm(a)),
        _orthonormal(u, "U^H U = I"),
        _orthonormal(vh.mH, "V^H V = I"),
        _descending(s, "S in descending order"),
    ]


def _svd(call: Call) -> list[Equation]:
    return _svd_of(call["U"], call["S"], call["Vh"], _given(call, "A"))


def _old_svd(call: Call) -> list[Equation]:
    return _svd_of(call["U"], call["S"], call["V"].mH, _given(call, "A"))


def _lowrank(call: Call) -> list[Equation]:
    """``U^H A V = S`` holds exactly for the space that was drawn; how good the space is, the distance from A tells."""
    a, u, s, v = _given(call, "A"), call["U"], call["S"], call["V"]
    if isinstance(call.given.get("M"), Tensor):
        a = a - call.given["M"]
    if call.given.get("centred", False):
        a = a - a.mean(-2, keepdim=True)
    far = _norm((u * s.unsqueeze(-2)) @ v.mH - a)
    return [
        _orthonormal(u, "U^H U = I"),
        _orthonormal(v, "V^H V = I"),
        Equation("U^H A V = S", u.mH @ a @ v - torch.diag_embed(s.to(a.dtype)), _norm(a)),
        Equation("U S V^H near A", far, _norm(a)),
    ]


def _pca(call: Call) -> list[Equation]:
    centred = call.given.get("center", True)
    return _lowrank(dataclasses.replace(call, given={**call.given, "centred": centred}))


def _hermitian(call: Call) -> Tensor:
    a = _given(call, "A")
    if str(call.given.get("UPLO", "L")).upper() == "U":
        return a.triu(1) + a.triu(1).mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))
    return a.tril(-1) + a.tril(-1).mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))


def _eigh(call: Call) -> list[Equation]:
    a, w, v = _hermitian(call), call["L"], call["V"]
    return [Equation("A V = V L", a @ v - v * w.unsqueeze(-2), _norm(a)), _orthonormal(v, "V^H V = I")]


def _eig(call: Call) -> list[Equation | Callable[[], Equation]]:
    a, w = _given(call, "A"), call["L"]
    a = a.to(torch.complex128)

    def vectors() -> Equation:
        return Equation("A v = w v", a @ call["V"] - call["V"] * w.unsqueeze(-2), _norm(a))

    def length() -> Equation:
        return Equation("|v| = 1", _columns(call["V"]) - 1.0, math.sqrt(max(a.shape[-1], 1)))

    def values() -> Equation:
        """Of a general matrix, eigenvalues move by the condition of the eigenvectors times the error (Bauer-Fike)."""
        golden, basis = torch.linalg.eig(a)
        condition = torch.linalg.cond(basis).clamp(1.0, 1e8).unsqueeze(-1).unsqueeze(-1)
        apart = (w.gather(-1, match(golden, w)) - golden).unsqueeze(-2)
        return Equation("the eigenvalues are A's", apart, condition * _norm(a))

    return [vectors, length, values]


def _qr(call: Call) -> list[Equation]:
    a, r = _given(call, "A"), call["R"]
    q = call.found.get("Q")
    triangular = _below(r, "R is upper triangular")
    if q is None or q.shape[-1] != r.shape[-2]:  # mode "r"
        return [Equation("R^H R = A^H A", r.mH @ r - a.mH @ a, _norm(a) ** 2), triangular]
    return [Equation("Q R = A", q @ r - a, _columns(a)), _orthonormal(q, "Q^H Q = I"), triangular]


def _geqrf(call: Call) -> list[Equation]:
    a, factors, tau = _given(call, "A"), call["a"], call["tau"]
    q = torch.linalg.householder_product(factors[..., : tau.shape[-1]], tau)
    r = factors.triu()[..., : q.shape[-1], :]
    return [Equation("Q R = A", q @ r - a, _columns(a)), _orthonormal(q, "Q^H Q = I")]


def _plu(p: Tensor, lower: Tensor, upper: Tensor, a: Tensor, pivoted: bool) -> list[Equation]:
    k = lower.shape[-1]
    unit = lower.diagonal(dim1=-2, dim2=-1)[..., :k] - 1.0
    # Rounding grows with what is multiplied, and without pivots that may be much more than A.
    found = [
        Equation("P L U = A", p.to(a.dtype) @ lower @ upper - a, _norm(lower.abs() @ upper.abs())),
        _below(upper, "U is upper triangular"),
        Equation("L has ones on its diagonal", unit.unsqueeze(-2)),
        _below(lower.mT, "L is lower triangular"),
    ]
    if pivoted:
        found.append(Equation("pivots are the largest", (lower.abs() - 1.0).clamp_min(0.0)))
        rows = torch.cat([p.sum(-1) - 1, p.sum(-2) - 1], -1).unsqueeze(-2).to(torch.float64)
        found.append(Equation("P is a permutation", rows))
    return found


def _lu(call: Call) -> list[Equation]:
    a, pivoted = _given(call, "A"), call.given.get("pivot", True) is not False
    lower, upper = call["L"], call["U"]
    p = call["P"] if pivoted else _eye(a.shape[-2])
    return _plu(p.real.double(), lower, upper, a, pivoted)


def _lu_factor(call: Call) -> list[Equation]:
    a, pivoted = _given(call, "A"), call.given.get("pivot", True) is not False
    packed, pivots = call["LU"], call["pivots"]
    if pivoted and pivots.numel() and not bool(((pivots >= 1) & (pivots <= a.shape[-2])).all()):
        return [Equation("pivots are rows of A", torch.full((1, 1), math.inf))]
    p, lower, upper = torch.lu_unpack(packed, pivots.int() if pivoted else torch.ones_like(pivots).int())
    if not pivoted:
        p = _eye(a.shape[-2])
    return _plu(p.real.double(), lower, upper, a, pivoted)


def _ldl(call: Call) -> list[Equation]:
    a, hermitian = _given(call, "A"), bool(call.given.get("hermitian", False))
    lower = a.tril()
    rest = a.tril(-1)
    a = lower + (rest.mH if hermitian else rest.mT)
    eye = _eye(a.shape[-1]).to(a.dtype).expand(a.shape)
    inverse = torch.linalg.ldl_solve(call["LD"], call["pivots"].int(), eye, hermitian=hermitian)
    return [Equation("L D L^H = A", a @ inverse - eye, _norm(a) * _norm(inverse))]


def _cholesky(call: Call) -> list[Equation]:
    a, upper = _given(call, "A"), bool(call.given.get("upper", False))
    factor = call["L"].mH if upper else call["L"]
    a = a.triu() + a.triu(1).mH if upper else a.tril() + a.tril(-1).mH
    positive = (-factor.diagonal(dim1=-2, dim2=-1).real).clamp_min(0.0).unsqueeze(-2)
    return [
        Equation("L L^H = A", factor @ factor.mH - a, _norm(a)),
        _below(factor.mT, "L is lower triangular"),
        Equation("L has a positive diagonal", positive, 0.0),
    ]


def _as_columns(b: Tensor, a: Tensor) -> Tensor:
    """A right-hand side as a matrix; torch takes a vector, and a batch of them, too."""
    if b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]):
        return b.unsqueeze(-1)
    return b


def _system(a: Tensor, x: Tensor, b: Tensor, text: str = "A X = B") -> list[Equation]:
    x, b = _as_columns(x, a), _as_columns(b, a)
    dtype = torch.promote_types(a.dtype, x.dtype)
    return [Equation(text, a.to(dtype) @ x.to(dtype) - b.to(dtype), _norm(a) * _columns(x) + _columns(b))]


def _solve(call: Call) -> list[Equation]:
    a, b, x = _given(call, "A"), _given(call, "B"), call["X"]
    if call.given.get("left", True) is False:
        return _system(a.mT, x.mT, b.mT, "X A = B")
    return _system(a, x, b)


def _triangular(call: Call) -> list[Equation]:
    a, upper = _given(call, "A"), bool(call.given.get("upper", True))
    a = a.triu() if upper else a.tril()
    if call.given.get("unitriangular", False):
        a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)) + _eye(a.shape[-1]).to(a.dtype)
    if call.given.get("transpose", False):
        a = a.mT
    return _solve(dataclasses.replace(call, given={**call.given, "A": a}))


def _cholesky_solve(call: Call) -> list[Equation]:
    factor = _given(call, "L")
    a = factor.triu().mH @ factor.triu() if call.given.get("upper", False) else factor.tril() @ factor.tril().mH
    return _system(a, call["X"], _given(call, "B"))


def _lu_solve(call: Call) -> list[Equation]:
    p, lower, upper = torch.lu_unpack(_given(call, "LU"), _given(call, "pivots"))
    a = p.to(lower.dtype) @ lower @ upper
    if call.given.get("adjoint", False):
        a = a.mH
    return _solve(dataclasses.replace(call, given={**call.given, "A": a}))


def _inverse(call: Call) -> list[Equation]:
    a, x = _given(call, "A"), call["X"]
    eye = _eye(a.shape[-1]).to(a.dtype)
    right, left = a @ x - eye, x @ a - eye
    # No method makes both small where A is ill-conditioned (Higham, chapter 14).
    smaller = torch.where(_norm(right) <= _norm(left), right, left)
    return [Equation("A X = I or X A = I", smaller, _norm(a) * _norm(x))]


def _pinv(call: Call) -> list[Equation]:
    """The four conditions of Penrose."""
    a, x = _given(call, "A"), call["X"]
    size, other = _norm(a), _norm(x)
    ax, xa = a @ x, x @ a
    return [
        Equation("A X A = A", ax @ a - a, size * size * other),
        Equation("X A X = X", xa @ x - x, size * other * other),
        Equation("A X is Hermitian", ax - ax.mH, size * other),
        Equation("X A is Hermitian", xa - xa.mH, size * other),
    ]


def _lstsq(call: Call) -> list[Equation]:
    """The residual is at right angles to the columns; of many solutions it is the shortest."""
    a, b = _given(call, "A"), _given(call, "B")
    x, b = _as_columns(call["X"], a), _as_columns(b, a)
    size = _norm(a)
    found = [Equation("A^H (A X - B) = 0", a.mH @ (a @ x - b), size * (size * _columns(x) + _columns(b)))]
    if a.shape[-2] < a.shape[-1]:
        inside = torch.linalg.pinv(a) @ (a @ x)
        found.append(Equation("X is the shortest", inside - x, torch.linalg.cond(a)[..., None, None] * _columns(x)))
    return found


def _tensorsolve(call: Call) -> list[Equation]:
    a, b, x = _given(call, "A"), _given(call, "B"), call["X"]
    if call.given.get("dims") is not None:
        raise Missing("dims")
    n = max(b.numel(), 1)
    return _system(a.reshape(n, -1), x.reshape(-1, 1), b.reshape(-1, 1))


def _tensorinv(call: Call) -> list[Equation]:
    a, x = _given(call, "A"), call["X"]
    n = math.prod(a.shape[: int(call.given.get("ind", 2))])
    inner = dataclasses.replace(call, given={"A": a.reshape(n, -1)}, found={"X": x.reshape(-1, n)})
    return _inverse(inner)


def _lobpcg(call: Call) -> list[Equation]:
    a, w, x = _given(call, "A"), call["E"], call["X"]
    b = call.given.get("B")
    bx = b @ x if isinstance(b, Tensor) else x
    size = _norm(a) * (_norm(b) if isinstance(b, Tensor) else 1.0)
    largest = call.given.get("largest", True) is not False
    kind = torch.promote_types(a.dtype, x.dtype)
    return [
        Equation("A X = B X E", a.to(kind) @ x - bx * w.unsqueeze(-2), size),
        Equation("X^H B X = I", x.mH @ bx - _eye(x.shape[-1]), math.sqrt(max(x.shape[-2], 1))),
        _descending(w if largest else -w, "E in order"),
        Equation("E are the extreme ones", _extreme(a, b, w, largest), size),
    ]


def _extreme(a: Tensor, b: Any, w: Tensor, largest: bool) -> Tensor:
    if isinstance(b, Tensor):
        factor = torch.linalg.cholesky(b)
        a = torch.linalg.solve_triangular(factor, torch.linalg.solve_triangular(factor, a, upper=False).mH, upper=False)
    every = torch.linalg.eigvalsh(a)
    best: Tensor = every.flip(-1)[..., : w.shape[-1]] if largest else every[..., : w.shape[-1]]
    apart: Tensor = w - best
    return apart.unsqueeze(-2)


# --- which function is defined how ----------------------------------------------------------------------------------

_SIGN = "unique up to sign"
_ORDER = "in no certain order"
_PIVOT = "not unique where pivots tie"
_FEW_DIGITS = "as inexact as the matrix is ill-conditioned"
_RANDOM = "random"

_SVD = Definition(
    ("A", "full_matrices", "compute_uv"),
    ("U", "S", "Vh"),
    {"U": _SIGN, "Vh": _SIGN},
    _svd,
    {"U": Gauge(-1), "Vh": Gauge(-2, True)},
)
_EIGH = Definition(("A", "UPLO"), ("L", "V"), {"V": _SIGN}, _eigh, {"V": Gauge(-1)})
_QR = Definition(("A", "mode"), ("Q", "R"), {"Q": _SIGN, "R": _SIGN}, _qr, {"Q": Gauge(-1), "R": Gauge(-2, True)})
_LU_FACTOR = Definition(
    ("A", "pivot"), ("LU", "pivots", "info"), {"LU": _PIVOT, "pivots": _PIVOT}, _lu_factor
)  # fmt: skip
_LDL = Definition(("A", "hermitian"), ("LD", "pivots", "info"), {"LD": _PIVOT, "pivots": _PIVOT}, _ldl)
_CHOLESKY = Definition(("A", "upper"), ("L", "info"), {"L": _FEW_DIGITS}, _cholesky)
_INVERSE = Definition(("A",), ("X", "info"), {"X": _FEW_DIGITS}, _inverse)
_PINV = Definition(("A",), ("X",), {"X": _FEW_DIGITS}, _pinv)
_SOLVE = Definition(("A", "B", "left"), ("X", "info"), {"X": _FEW_DIGITS}, _solve)

_TABLE: dict[str, Definition] = {
    "linalg.svd": _SVD,
    "_linalg_svd": _SVD,
    "svd": dataclasses.replace(
        _SVD,
        names=("A", "some", "compute_uv"),
        results=("U", "S", "V"),
        free={"U": _SIGN, "V": _SIGN},
        equations=_old_svd,
        gauge={"U": Gauge(-1), "V": Gauge(-1)},
    ),
    "svd_lowrank": Definition(
        ("A", "q", "niter", "M"),
        ("U", "S", "V"),
        {"U": _RANDOM, "S": _RANDOM, "V": _RANDOM},
        _lowrank,
        {"U": Gauge(-1), "V": Gauge(-1)},
        random=True,
    ),
    "pca_lowrank": Definition(
        ("A", "q", "center", "niter"),
        ("U", "S", "V"),
        {"U": _RANDOM, "S": _RANDOM, "V": _RANDOM},
        _pca,
        {"U": Gauge(-1), "V": Gauge(-1)},
        random=True,
    ),
    "lobpcg": Definition(
        ("A", "k", "B", "X", "n", "iK", "niter", "tol", "largest"),
        ("E", "X"),
        {"E": _RANDOM, "X": _RANDOM},
        _lobpcg,
        {"X": Gauge(-1)},
        random=True,
    ),
    "linalg.eigh": _EIGH,
    "_linalg_eigh": _EIGH,
    "linalg.eig": Definition(
        ("A",),
        ("L", "V"),
        {"L": _ORDER, "V": f"{_SIGN}, {_ORDER}"},
        _eig,
        {"V": Gauge(-1)},
        order="L",
    ),
    "linalg.eigvals": Definition(("A",), ("L",), {"L": _ORDER}, _eig, order="L"),
    "linalg.qr": _QR,
    "qr": dataclasses.replace(_QR, names=("A", "some")),
    "geqrf": Definition(("A",), ("a", "tau"), {"a": _SIGN, "tau": _SIGN}, _geqrf),
    "linalg.lu": Definition(("A",), ("P", "L", "U"), {"P": _PIVOT, "L": _PIVOT, "U": _PIVOT}, _lu),
    "linalg.lu_factor": _LU_FACTOR,
    "linalg.lu_factor_ex": _LU_FACTOR,
    "lu": _LU_FACTOR,
    "_lu_with_info": _LU_FACTOR,
    "linalg.ldl_factor": _LDL,
    "linalg.ldl_factor_ex": _LDL,
    "linalg.cholesky": _CHOLESKY,
    "linalg.cholesky_ex": _CHOLESKY,
    "cholesky": _CHOLESKY,
    "linalg.inv": _INVERSE,
    "linalg.inv_ex": _INVERSE,
    "inverse": _INVERSE,
    "linalg.pinv": _PINV,
    "pinverse": _PINV,
    "linalg.solve": _SOLVE,
    "linalg.solve_ex": _SOLVE,
    "linalg.solve_triangular": Definition(
        ("A", "B", "upper", "left", "unitriangular"), ("X",), {"X": _FEW_DIGITS}, _triangular
    ),
    "triangular_solve": Definition(
        ("B", "A", "upper", "transpose", "unitriangular"), ("X", "cloned"), {"X": _FEW_DIGITS}, _triangular
    ),
    "cholesky_solve": Definition(("B", "L", "upper"), ("X",), {"X": _FEW_DIGITS}, _cholesky_solve),
    "linalg.lu_solve": Definition(("LU", "pivots", "B", "left", "adjoint"), ("X",), {"X": _FEW_DIGITS}, _lu_solve),
    "lu_solve": Definition(("B", "LU", "pivots"), ("X",), {"X": _FEW_DIGITS}, _lu_solve),
    "linalg.lstsq": Definition(
        ("A", "B", "rcond"), ("X", "residuals", "rank", "singular_values"), {"X": _FEW_DIGITS}, _lstsq
    ),
    "linalg.tensorsolve": Definition(("A", "B", "dims"), ("X",), {"X": _FEW_DIGITS}, _tensorsolve),
    "linalg.tensorinv": Definition(("A", "ind"), ("X",), {"X": _FEW_DIGITS}, _tensorinv),
}


def canonical(api: str) -> str:
    """A torch function's short name: ``linalg.svd`` for ``torch.linalg.svd`` and ``torch.ops.aten.linalg_svd.default``,
    ``svd`` for ``torch.svd`` and ``torch.Tensor.svd``; empty for what isn't torch's."""
    if api.startswith("torch.ops.aten."):
        name = api.split(".")[3]
        return f"linalg.{name.removeprefix('linalg_')}" if name.startswith("linalg_") else name
    if not api.startswith("torch."):
        return ""
    for home in ("torch.Tensor.", "torch.nn.functional.", "torch._C._nn.", "torch.functional.", "torch._C._linalg."):
        api = api.replace(home, "torch.")
    name = api.removeprefix("torch.")
    return f"linalg.{name.removeprefix('linalg_')}" if name.startswith("linalg_") else name


def find(api: str) -> Definition | None:
    """What defines the results of a torch function, by its name in reports; None where values do."""
    return _TABLE.get(canonical(api))
