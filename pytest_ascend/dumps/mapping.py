"""The mapping file: which layer, API call or argument of the target belongs to which of the golden dump.

YAML, or JSON of the same form::

    layers:                                # part of a layer's path in the golden: in the target
      encoder.layer: model.blocks
    apis:                                  # all calls of an API in their order, or one call by its number
      Functional.layer_norm: NPU.npu_layer_norm
      Functional.softmax.3: Mint.softmax.1
    arguments:                             # of one call by its whole name, or of all calls of an API
      Functional.linear.0.forward.input.1: Functional.linear.0.forward.input.2
      Functional.softmax: {input.0: input.1, output.0: output.0}

A file is the user's own and is read as carefully as a dump all the same: no tags, no aliases, no key twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_ascend.dumps.text import DumpError, parse, read, short

__all__ = ["MapError", "Mapped", "read_mapping"]

_LEVELS = ("layers", "apis", "arguments")
_LARGEST = 8 << 20


class MapError(DumpError):
    """A mapping file can't be used. The message is one sentence."""


@dataclass(frozen=True)
class Mapped:
    """A mapping file.

    Attributes:
        layers: part of a layer's path in the golden to that in the target.
        apis: ``Functional.softmax`` or ``Functional.softmax.3`` in the golden to that in the target.
        arguments: of an API or a whole call in the golden, label to label.
    """

    layers: Mapping[str, str] = field(default_factory=dict)
    apis: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def label(self, call: str, api: str, label: str) -> str:
        """What an argument of a golden call is called in the target."""
        for key in (call, api):
            if (renamed := self.arguments.get(key, {}).get(label)) is not None:
                return renamed
        return label


def read_mapping(given: str | os.PathLike[str] | Mapping[str, Any] | None) -> Mapped:
    """A mapping out of a file's path, or of what would stand in one.

    Raises:
        MapError: it can't be read, or isn't of the form above; or it is YAML and PyYAML isn't installed.
    """
    if given is None:
        return Mapped()
    if isinstance(given, Mapping):
        return _checked(given, "mapping")
    path = os.fspath(given)
    if path.endswith(".json"):
        try:
            return _checked(parse(path, _LARGEST), path)
        except MapError:
            raise
        except DumpError as error:
            raise MapError(str(error)) from None
    try:
        text = read(path, _LARGEST)
    except DumpError as error:
        raise MapError(str(error)) from None
    return _checked(_yaml(text, path), path)


def _yaml(text: str, path: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MapError(
            f"{path}: reading YAML needs PyYAML: pip install 'pytest-ascend[yaml]', or write the mapping as .json"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Plain data alone, no aliases, no key twice."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise MapError(f"{path}: line {self.peek_event().start_mark.line + 1}: aliases aren't read")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.value in seen if isinstance(key.value, str) else False:
                    raise MapError(f"{path}: line {key.start_mark.line + 1}: the key {short(key.value)!r} occurs twice")
                seen.add(key.value if isinstance(key.value, str) else id(key))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader that refuses more
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise MapError(f"{path}: {line}isn't YAML: {short(str(problem))}") from None
    except RecursionError:
        raise MapError(f"{path}: is nested too deeply") from None


def _checked(content: Any, path: str) -> Mapped:
    if content is None:
        return Mapped()
    if not isinstance(content, Mapping):
        raise MapError(f"{path}: a mapping has the keys {', '.join(_LEVELS)}, and this is {_kind(content)}")
    if strangers := [str(key) for key in content if key not in _LEVELS]:
        raise MapError(f"{path}: {short(strangers[0])!r} is no level of a mapping: give {', '.join(_LEVELS)}")
    levels = {level: content.get(level) or {} for level in _LEVELS}
    for level, found in levels.items():
        if not isinstance(found, Mapping):
            raise MapError(f"{path}: {level} holds {_kind(found)}: give golden: target pairs")
    arguments: dict[str, dict[str, str]] = {}
    for key, value in levels["arguments"].items():
        if isinstance(value, Mapping):
            arguments.setdefault(str(key), {}).update(_names(value, f"{path}: arguments: {short(str(key))}"))
            continue
        ((whole, renamed),) = _names({key: value}, f"{path}: arguments").items()
        call, label = _split(whole, path)
        arguments.setdefault(call, {})[label] = _split(renamed, path)[1]
    return Mapped(_names(levels["layers"], f"{path}: layers"), _names(levels["apis"], f"{path}: apis"), arguments)


def _names(pairs: Mapping[Any, Any], where: str) -> dict[str, str]:
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key or not value:
            raise MapError(f"{where}: {short(repr(key))}: {short(repr(value))} isn't a pair of names")
    targets = list(pairs.values())
    if len(set(targets)) < len(targets):
        twice = next(t for t in targets if targets.count(t) > 1)
        raise MapError(f"{where}: {short(twice)!r} is the target of two names")
    return dict(pairs)


def _split(name: str, path: str) -> tuple[str, str]:
    """A tensor's name as its call and its label."""
    for direction in (".forward", ".backward"):
        call, found, label = name.partition(direction + ".")
        if found:
            number, dot, rest = label.partition(".")
            if number.isdigit():  # a layer's name ends with its number
                return f"{call}{direction}.{number}", rest if dot else ""
            return f"{call}{direction}", label
    raise MapError(
        f"{path}: arguments: {short(name)!r} names no argument: give one such as Torch.add.0.forward.input.1"
    )


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")
