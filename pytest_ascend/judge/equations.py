"""The equations that singular vectors, eigenvalues, factors, inverses and solutions fulfil, as residuals in float64.

Each function takes a :class:`Call` and returns what must vanish, beside what it has to be small: norms of what was
multiplied (Frobenius' unless said otherwise), so that a backward stable algorithm leaves a few roundoffs of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_ascend.judge.matching import match

Tensor = torch.Tensor

TINY = 1e-300


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
        units = self.error.abs().double() / (roundoff * scale.double() + TINY)
        units = torch.where(self.error == 0, 0.0, units).nan_to_num(nan=math.inf, posinf=math.inf)
        if not units.numel():
            return torch.zeros(self.error.shape[:-2], dtype=torch.float64)
        return units.amax((-2, -1)) if units.dim() >= 2 else units.amax()


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


def svd(call: Call) -> list[Equation]:
    return _svd_of(call["U"], call["S"], call["Vh"], _given(call, "A"))


def old_svd(call: Call) -> list[Equation]:
    return _svd_of(call["U"], call["S"], call["V"].mH, _given(call, "A"))


def lowrank(call: Call) -> list[Equation]:
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


def pca(call: Call) -> list[Equation]:
    centred = call.given.get("center", True)
    return lowrank(dataclasses.replace(call, given={**call.given, "centred": centred}))


def _hermitian(call: Call) -> Tensor:
    a = _given(call, "A")
    if str(call.given.get("UPLO", "L")).upper() == "U":
        return a.triu(1) + a.triu(1).mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))
    return a.tril(-1) + a.tril(-1).mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(a.dtype))


def eigh(call: Call) -> list[Equation]:
    a, w, v = _hermitian(call), call["L"], call["V"]
    return [Equation("A V = V L", a @ v - v * w.unsqueeze(-2), _norm(a)), _orthonormal(v, "V^H V = I")]


def eig(call: Call) -> list[Equation | Callable[[], Equation]]:
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


def qr(call: Call) -> list[Equation]:
    a, r = _given(call, "A"), call["R"]
    q = call.found.get("Q")
    triangular = _below(r, "R is upper triangular")
    if q is None or q.shape[-1] != r.shape[-2]:  # mode "r"
        return [Equation("R^H R = A^H A", r.mH @ r - a.mH @ a, _norm(a) ** 2), triangular]
    return [Equation("Q R = A", q @ r - a, _columns(a)), _orthonormal(q, "Q^H Q = I"), triangular]


def geqrf(call: Call) -> list[Equation]:
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


def lu(call: Call) -> list[Equation]:
    a, pivoted = _given(call, "A"), call.given.get("pivot", True) is not False
    lower, upper = call["L"], call["U"]
    p = call["P"] if pivoted else _eye(a.shape[-2])
    return _plu(p.real.double(), lower, upper, a, pivoted)


def lu_factor(call: Call) -> list[Equation]:
    a, pivoted = _given(call, "A"), call.given.get("pivot", True) is not False
    packed, pivots = call["LU"], call["pivots"]
    if pivoted and pivots.numel() and not bool(((pivots >= 1) & (pivots <= a.shape[-2])).all()):
        return [Equation("pivots are rows of A", torch.full((1, 1), math.inf))]
    p, lower, upper = torch.lu_unpack(packed, pivots.int() if pivoted else torch.ones_like(pivots).int())
    if not pivoted:
        p = _eye(a.shape[-2])
    return _plu(p.real.double(), lower, upper, a, pivoted)


def ldl(call: Call) -> list[Equation]:
    a, hermitian = _given(call, "A"), bool(call.given.get("hermitian", False))
    lower = a.tril()
    rest = a.tril(-1)
    a = lower + (rest.mH if hermitian else rest.mT)
    eye = _eye(a.shape[-1]).to(a.dtype).expand(a.shape)
    inverse = torch.linalg.ldl_solve(call["LD"], call["pivots"].int(), eye, hermitian=hermitian)
    return [Equation("L D L^H = A", a @ inverse - eye, _norm(a) * _norm(inverse))]


def cholesky(call: Call) -> list[Equation]:
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


def solve(call: Call) -> list[Equation]:
    a, b, x = _given(call, "A"), _given(call, "B"), call["X"]
    if call.given.get("left", True) is False:
        return _system(a.mT, x.mT, b.mT, "X A = B")
    return _system(a, x, b)


def triangular(call: Call) -> list[Equation]:
    a, upper = _given(call, "A"), bool(call.given.get("upper", True))
    a = a.triu() if upper else a.tril()
    if call.given.get("unitriangular", False):
        a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)) + _eye(a.shape[-1]).to(a.dtype)
    if call.given.get("transpose", False):
        a = a.mT
    return solve(dataclasses.replace(call, given={**call.given, "A": a}))


def cholesky_solve(call: Call) -> list[Equation]:
    factor = _given(call, "L")
    a = factor.triu().mH @ factor.triu() if call.given.get("upper", False) else factor.tril() @ factor.tril().mH
    return _system(a, call["X"], _given(call, "B"))


def lu_solve(call: Call) -> list[Equation]:
    p, lower, upper = torch.lu_unpack(_given(call, "LU"), _given(call, "pivots"))
    a = p.to(lower.dtype) @ lower @ upper
    if call.given.get("adjoint", False):
        a = a.mH
    return solve(dataclasses.replace(call, given={**call.given, "A": a}))


def inverse(call: Call) -> list[Equation]:
    a, x = _given(call, "A"), call["X"]
    eye = _eye(a.shape[-1]).to(a.dtype)
    right, left = a @ x - eye, x @ a - eye
    # No method makes both small where A is ill-conditioned (Higham, chapter 14).
    smaller = torch.where(_norm(right) <= _norm(left), right, left)
    return [Equation("A X = I or X A = I", smaller, _norm(a) * _norm(x))]


def pinv(call: Call) -> list[Equation]:
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


def lstsq(call: Call) -> list[Equation]:
    """The residual is at right angles to the columns; of many solutions it is the shortest."""
    a, b = _given(call, "A"), _given(call, "B")
    x, b = _as_columns(call["X"], a), _as_columns(b, a)
    size = _norm(a)
    found = [Equation("A^H (A X - B) = 0", a.mH @ (a @ x - b), size * (size * _columns(x) + _columns(b)))]
    if a.shape[-2] < a.shape[-1]:
        inside = torch.linalg.pinv(a) @ (a @ x)
        found.append(Equation("X is the shortest", inside - x, torch.linalg.cond(a)[..., None, None] * _columns(x)))
    return found


def tensorsolve(call: Call) -> list[Equation]:
    a, b, x = _given(call, "A"), _given(call, "B"), call["X"]
    if call.given.get("dims") is not None:
        raise Missing("dims")
    n = max(b.numel(), 1)
    return _system(a.reshape(n, -1), x.reshape(-1, 1), b.reshape(-1, 1))


def tensorinv(call: Call) -> list[Equation]:
    a, x = _given(call, "A"), call["X"]
    n = math.prod(a.shape[: int(call.given.get("ind", 2))])
    inner = dataclasses.replace(call, given={"A": a.reshape(n, -1)}, found={"X": x.reshape(-1, n)})
    return inverse(inner)


def lobpcg(call: Call) -> list[Equation]:
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
    every: Tensor = torch.linalg.eigvalsh(a)
    best = every.flip(-1)[..., : w.shape[-1]] if largest else every[..., : w.shape[-1]]
    return (w - best).unsqueeze(-2)
