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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_ascend.judge import equations
from pytest_ascend.judge.equations import Call, Equation, Missing
from pytest_ascend.judge.matching import match

__all__ = ["Definition", "Gauge", "align", "canonical", "find", "judge"]

Tensor = torch.Tensor

#: A residual may be so many times the CPU's own, and is no fault below so many units: LAPACK leaves up to 7 of them on
#: matrices of a dozen rows, and its own tests allow 30 times the number of rows (LAWN 41).
RATIO, FEW = 3.0, 16.0
#: Where the CPU's own residual is larger than this beside the size of what is in it, the equation isn't this case's.
HOLDS = 2.0**-6
#: Of functions that start from random numbers: the CPU's own run is one of many.
RANDOM_RATIO = 16.0


@dataclasses.dataclass(frozen=True)
class Gauge:
    """Along which axis of a result its vectors lie side by side, and whether it takes the conjugate of their phase."""

    axis: int
    conjugate: bool = False


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


def judge(definition: Definition, actual: Call, benchmark: Call | None) -> tuple[str, str]:
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
        if own.numel() and not float(own.max()) * actual.roundoff <= HOLDS:
            asked.remove(text)  # a case that this isn't the definition of, such as one triangle of a matrix
            continue
        limit = (ratio * own.nan_to_num(posinf=0.0)).clamp_min(FEW)
        over = residual / limit
        if not over.numel() or not float(over.max()) > max(1.0, worst):
            continue
        worst, at = float(over.max()), int(over.argmax())
        size, most = float(residual.reshape(-1)[at]), float(limit.expand_as(residual).reshape(-1)[at])
        bad = f" for {int((over > 1).sum())} of {over.numel()} matrices" if over.numel() > 1 else ""
        wrong = f"{text} doesn't hold{bad}: the residual is {size:.3g} units, and may be {most:.3g}"
    for text in theirs.keys() - ours.keys():  # pivots that are none, say
        wrong = f"{text} can't even be asked of it, and can of the CPU's own"
    return wrong, ", ".join(asked)


def _residuals(definition: Definition, call: Call) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    try:
        asked = list(definition.equations(call))
    except (Missing, RuntimeError):
        return found
    for one in asked:
        try:
            equation = one() if callable(one) else one
            found[equation.text] = equation.residual(call.roundoff)
        except (Missing, RuntimeError):  # a shape that isn't this definition's, or singular where it was to be inverted
            continue
    return found


# --- alignment ------------------------------------------------------------------------------------------------------


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
            phase = torch.where(inner == 0, torch.ones_like(inner), inner / inner.abs().clamp_min(equations.TINY))
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
    equations.svd,
    {"U": Gauge(-1), "Vh": Gauge(-2, True)},
)
_EIGH = Definition(("A", "UPLO"), ("L", "V"), {"V": _SIGN}, equations.eigh, {"V": Gauge(-1)})
_QR = Definition(
    ("A", "mode"), ("Q", "R"), {"Q": _SIGN, "R": _SIGN}, equations.qr, {"Q": Gauge(-1), "R": Gauge(-2, True)}
)
_LU_FACTOR = Definition(
    ("A", "pivot"), ("LU", "pivots", "info"), {"LU": _PIVOT, "pivots": _PIVOT}, equations.lu_factor
)  # fmt: skip
_LDL = Definition(("A", "hermitian"), ("LD", "pivots", "info"), {"LD": _PIVOT, "pivots": _PIVOT}, equations.ldl)
_CHOLESKY = Definition(("A", "upper"), ("L", "info"), {"L": _FEW_DIGITS}, equations.cholesky)
_INVERSE = Definition(("A",), ("X", "info"), {"X": _FEW_DIGITS}, equations.inverse)
_PINV = Definition(("A",), ("X",), {"X": _FEW_DIGITS}, equations.pinv)
_SOLVE = Definition(("A", "B", "left"), ("X", "info"), {"X": _FEW_DIGITS}, equations.solve)

_TABLE: dict[str, Definition] = {
    "linalg.svd": _SVD,
    "_linalg_svd": _SVD,
    "svd": dataclasses.replace(
        _SVD,
        names=("A", "some", "compute_uv"),
        results=("U", "S", "V"),
        free={"U": _SIGN, "V": _SIGN},
        equations=equations.old_svd,
        gauge={"U": Gauge(-1), "V": Gauge(-1)},
    ),
    "svd_lowrank": Definition(
        ("A", "q", "niter", "M"),
        ("U", "S", "V"),
        {"U": _RANDOM, "S": _RANDOM, "V": _RANDOM},
        equations.lowrank,
        {"U": Gauge(-1), "V": Gauge(-1)},
        random=True,
    ),
    "pca_lowrank": Definition(
        ("A", "q", "center", "niter"),
        ("U", "S", "V"),
        {"U": _RANDOM, "S": _RANDOM, "V": _RANDOM},
        equations.pca,
        {"U": Gauge(-1), "V": Gauge(-1)},
        random=True,
    ),
    "lobpcg": Definition(
        ("A", "k", "B", "X", "n", "iK", "niter", "tol", "largest"),
        ("E", "X"),
        {"E": _RANDOM, "X": _RANDOM},
        equations.lobpcg,
        {"X": Gauge(-1)},
        random=True,
    ),
    "linalg.eigh": _EIGH,
    "_linalg_eigh": _EIGH,
    "linalg.eig": Definition(
        ("A",),
        ("L", "V"),
        {"L": _ORDER, "V": f"{_SIGN}, {_ORDER}"},
        equations.eig,
        {"V": Gauge(-1)},
        order="L",
    ),
    "linalg.eigvals": Definition(("A",), ("L",), {"L": _ORDER}, equations.eig, order="L"),
    "linalg.qr": _QR,
    "qr": dataclasses.replace(_QR, names=("A", "some")),
    "geqrf": Definition(("A",), ("a", "tau"), {"a": _SIGN, "tau": _SIGN}, equations.geqrf),
    "linalg.lu": Definition(("A",), ("P", "L", "U"), {"P": _PIVOT, "L": _PIVOT, "U": _PIVOT}, equations.lu),
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
        ("A", "B", "upper", "left", "unitriangular"), ("X",), {"X": _FEW_DIGITS}, equations.triangular
    ),
    "triangular_solve": Definition(
        ("B", "A", "upper", "transpose", "unitriangular"), ("X", "cloned"), {"X": _FEW_DIGITS}, equations.triangular
    ),
    "cholesky_solve": Definition(("B", "L", "upper"), ("X",), {"X": _FEW_DIGITS}, equations.cholesky_solve),
    "linalg.lu_solve": Definition(
        ("LU", "pivots", "B", "left", "adjoint"), ("X",), {"X": _FEW_DIGITS}, equations.lu_solve
    ),
    "lu_solve": Definition(("B", "LU", "pivots"), ("X",), {"X": _FEW_DIGITS}, equations.lu_solve),
    "linalg.lstsq": Definition(
        ("A", "B", "rcond"), ("X", "residuals", "rank", "singular_values"), {"X": _FEW_DIGITS}, equations.lstsq
    ),
    "linalg.tensorsolve": Definition(("A", "B", "dims"), ("X",), {"X": _FEW_DIGITS}, equations.tensorsolve),
    "linalg.tensorinv": Definition(("A", "ind"), ("X",), {"X": _FEW_DIGITS}, equations.tensorinv),
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
