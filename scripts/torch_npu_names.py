#!/usr/bin/env python3
"""List the dotted names a torch_npu release offers, without importing it.

torch_npu can only be imported next to its native driver stack, but the plugin's device code and the emulated device
must use and offer the very names that it has. This reads a wheel's Python sources with ``ast`` and writes the sorted
list, one name a line:

    python scripts/torch_npu_names.py torch_npu-2.14.0-cp311-cp311-manylinux_2_28_x86_64.whl
    python scripts/torch_npu_names.py --version 2.14.0          # fetches the wheel with pip first

A name is listed when it is a module; a function, class or variable bound at a module's top level; a method, property
or attribute of such a class; bound from outside (``torch_npu.npu_x = ...``, ``setattr`` through a table of names); or
named in ``__all__``. Names of the native module (``torch_npu._C.*``) are listed as far as the sources mention them.
Names that start with an underscore are listed only where the package itself exports them. ``torch.npu`` is the module
``torch_npu.npu``, so its names appear under both spellings.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "torch_npu"
ALIAS = ("torch_npu.npu", "torch.npu")
NATIVE = "torch_npu._C"
# Build tools, examples of generated code and tests; nothing there is part of the interface.
SKIPPED = ("torch_npu.testing", "torch_npu.csrc", "torch_npu.include")
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "torch_npu_names.txt"


@dataclass
class Binding:
    """What a top-level name of a module stands for: a class's members, or another place's name."""

    members: set[str] = field(default_factory=set)
    target: str | None = None  # dotted name inside the package this one is imported from


@dataclass
class Module:
    """Top-level names of one module."""

    name: str
    is_package: bool
    bindings: dict[str, Binding] = field(default_factory=dict)
    exported: list[str] | None = None  # __all__, when there is one
    stars: list[str] = field(default_factory=list)  # modules star-imported from

    def absolute(self, module: str | None, level: int) -> str:
        """The absolute name of what ``from <dots><module>`` means in this module."""
        if level == 0:
            return module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - level + (1 if self.is_package else 0)]
        return ".".join([*parts, module] if module else parts)


def read_wheel(path: Path) -> Iterator[tuple[str, bool, ast.Module]]:
    """Yield (module name, is it a package, syntax tree) for every Python source of the package."""
    with zipfile.ZipFile(path) as wheel:
        for entry in sorted(wheel.namelist()):
            if not entry.startswith(PACKAGE + "/") or not entry.endswith(".py"):
                continue
            parts = entry[: -len(".py")].split("/")
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            if name.startswith(SKIPPED):
                continue
            try:
                with warnings.catch_warnings():  # their sources' own "invalid escape sequence" and the like
                    warnings.simplefilter("ignore")
                    tree = ast.parse(wheel.read(entry), filename=entry)
            except SyntaxError as error:  # a template, or newer syntax than this Python's
                print(f"skipped {entry}: {error}", file=sys.stderr)
                continue
            yield name, is_package, tree


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` for a chain of attributes on a name, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def strings(node: ast.expr) -> list[str]:
    """The string constants of a list, tuple, set or concatenation of them."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    if isinstance(node, ast.BinOp):
        return strings(node.left) + strings(node.right)
    return []


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, those under if, try, with and for included."""
    for node in body:
        yield node
        for branch in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from statements(getattr(node, branch, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def names_of(target: ast.expr) -> Iterator[str]:
    """Plain names an assignment target binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from names_of(element)


def class_members(node: ast.ClassDef) -> set[str]:
    """Methods, class attributes and the attributes its methods use on ``self`` (some come from a native base)."""
    members: set[str] = set()
    for child in statements(node.body):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            members.add(child.name)
            for inner in ast.walk(child):
                if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
                    members.add(inner.attr)
                # Switches such as matmul.allow_hf32 exist only as `if name == "allow_hf32"` in these two.
                if child.name in ("__getattr__", "__setattr__") and isinstance(inner, ast.Compare):
                    members.update(
                        c.value for c in inner.comparators if isinstance(c, ast.Constant) and isinstance(c.value, str)
                    )
        elif isinstance(child, ast.Assign):
            members.update(name for target in child.targets for name in names_of(target))
        elif isinstance(child, ast.AnnAssign):
            members.update(names_of(child.target))
    return members


def summarise(name: str, is_package: bool, tree: ast.Module) -> Module:
    """Top-level bindings of one module."""
    module = Module(name, is_package)
    for node in statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            module.bindings[node.name] = Binding()
        elif isinstance(node, ast.ClassDef):
            binding = Binding(class_members(node))
            bases = [base for base in map(dotted, node.bases) if base]
            binding.members.update(f"<{base}>" for base in bases)  # resolved once every module is known
            module.bindings[node.name] = binding
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for bound in names_of(target):
                    if bound == "__all__":
                        module.exported = (module.exported or []) + strings(node.value)
                    else:
                        # `config = npu_config._npuConfig()` has that class's members; an alias has its target's.
                        value = node.value.func if isinstance(node.value, ast.Call) else node.value
                        source = dotted(value)
                        module.bindings[bound] = Binding({f"<{source}>"} if source else set())
        elif isinstance(node, ast.AnnAssign):
            for bound in names_of(node.target):
                module.bindings[bound] = Binding()
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id == "__all__":
                module.exported = (module.exported or []) + strings(node.value)
        elif isinstance(node, ast.ImportFrom):
            source = module.absolute(node.module, node.level)
            if source.split(".")[0] != PACKAGE:
                continue
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(source)
                else:
                    module.bindings[alias.asname or alias.name] = Binding(target=f"{source}.{alias.name}")
    return module


class Names:
    """The name table of one wheel."""

    def __init__(self, wheel: Path) -> None:
        self.modules: dict[str, Module] = {}
        self.outside: set[str] = set()  # bound by assignment to torch_npu.x.y somewhere
        self.native: set[str] = set()
        for name, is_package, tree in read_wheel(wheel):
            self.modules[name] = summarise(name, is_package, tree)
            self._scan(tree)

    def _scan(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                chain = dotted(node)
                if chain and chain.startswith(NATIVE + "."):
                    self.native.add(chain)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    chain = dotted(target) if isinstance(target, ast.Attribute) else None
                    if chain and chain.startswith(PACKAGE + "."):
                        self.outside.add(chain)
                    # torch_npu exports its operators through tables of names: a list of functions, a dict of symbols.
                    if isinstance(target, ast.Name) and target.id == "public_npu_functions":
                        self.outside.update(f"{PACKAGE}.{op}" for op in strings(node.value))
                    if isinstance(target, ast.Name) and target.id == "_LAZY_PYTHON_SYMBOLS":
                        keys = node.value.keys if isinstance(node.value, ast.Dict) else []
                        listed = ast.List([key for key in keys if key is not None])
                        self.outside.update(f"{PACKAGE}.{name}" for name in strings(listed))
            elif isinstance(node, ast.Call) and dotted(node.func) == "_add_torch_npu_docstr":
                self.outside.update(f"{PACKAGE}.{op}" for op in strings(ast.List(node.args[:1])))

    def bindings(self, module: Module, seen: frozenset[str] = frozenset()) -> dict[str, Binding]:
        """A module's names with star imports followed."""
        found: dict[str, Binding] = {}
        for source in module.stars:
            other = self.modules.get(source)
            if other is None or source in seen:
                continue
            offered = self.bindings(other, seen | {module.name})
            names = other.exported if other.exported is not None else [n for n in offered if not n.startswith("_")]
            found.update({name: Binding(target=f"{source}.{name}") for name in names})
        found.update(module.bindings)
        for name in module.exported or ():
            found.setdefault(name, Binding())
        return found

    def members(self, module: Module, binding: Binding, seen: frozenset[str] = frozenset()) -> set[str]:
        """Members of what a name stands for: a class's own and its bases', followed through imports."""
        found: set[str] = set()
        if binding.target is not None:
            found |= self._members_of(binding.target, seen)
        for member in binding.members:
            if not member.startswith("<"):
                found.add(member)
                continue
            base = member[1:-1]
            head, _, rest = base.partition(".")
            local = self.bindings(module).get(head)
            if base.startswith(PACKAGE + "."):
                found |= self._members_of(base, seen)
            elif local is not None and not rest:
                key = f"{module.name}.{base}"
                if key not in seen:
                    found |= self.members(module, local, seen | {key})
            else:  # a submodule's class, as in npu_config._npuConfig
                found |= self._members_of(f"{module.name}.{base}", seen)
        return found

    def _members_of(self, name: str, seen: frozenset[str]) -> set[str]:
        owner, _, last = name.rpartition(".")
        module = self.modules.get(owner)
        if module is None or name in seen:
            return set()
        binding = self.bindings(module).get(last)
        return set() if binding is None else self.members(module, binding, seen | {name})

    def all(self) -> set[str]:
        """Every listed name, dotted."""
        names = set(self.outside)
        for module in self.modules.values():
            if any(part.startswith("_") for part in module.name.split(".")[1:]):
                continue
            names.add(module.name)
            exported = set(module.exported or ())
            for name, binding in self.bindings(module).items():
                if name.startswith("_") and name not in exported and name != "__version__":
                    continue
                names.add(f"{module.name}.{name}")
                names.update(
                    f"{module.name}.{name}.{member}"
                    for member in self.members(module, binding)
                    if not member.startswith("_")
                )
        names = {name for name in names if "__" not in name.replace("__version__", "")}
        real, alias = ALIAS
        names |= {alias + name[len(real) :] for name in names if name == real or name.startswith(real + ".")}
        return names | {NATIVE} | {name for name in self.native if "__" not in name}


def download(version: str, directory: Path) -> Path:
    """Fetch one wheel of the release with pip; any platform's will do, only its Python sources are read."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.11"]
    command += ["--platform", "manylinux_2_28_x86_64", "-q", "-d", str(directory), f"torch-npu=={version}"]
    subprocess.run(command, check=True)
    return next(directory.glob("*.whl"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="a torch_npu wheel; without it one is downloaded")
    parser.add_argument("--version", default="2.14.0", help="release to download (default %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT_OUTPUT, help="default: %(default)s")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        wheel = options.wheel or download(options.version, Path(directory))
        names = sorted(Names(wheel).all())
        release = wheel.name.split("-")[1]
    header = f"# Names of torch_npu {release}, written by scripts/torch_npu_names.py; do not edit.\n"
    options.output.write_text(header + "\n".join(names) + "\n", encoding="utf-8")
    print(f"{len(names)} names of torch_npu {release} in {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
