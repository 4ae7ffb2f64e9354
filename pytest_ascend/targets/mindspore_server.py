"""The process that MindSpore runs in: it answers one call after the other. A script of its own, run by mindspore.py.

It imports nothing of pytest-ascend, so that the process holds MindSpore and numpy alone: a crash in a kernel ends this
process and not the tests', and no other framework has the device at the same time.

A request is a dict, and so is the answer. Values travel as numpy arrays and plain Python; what is neither is tagged:

=============================  =====================================================================================
``("tensor", i)``              tensor number ``i`` of the request or answer
``("dtype", "float32")``       a dtype
``("list", [...])``            a list; ``("tuple", [...])``, ``("dict", {...})`` and ``("slice", [a, b, c])`` likewise
``("plain", value)``           None, bool, number, str, Ellipsis
=============================  =====================================================================================

A tensor is ``{"dtype": name, "data": array, "view": None or (shape, strides, offset)}``: bfloat16 lies in the array as
float32, which holds the same values; with a view the array is the storage, one-dimensional, strides and offset counted
in elements.
"""

import os
import sys

sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]  # our mindspore.py

import faulthandler  # noqa: E402
import inspect  # noqa: E402
import signal  # noqa: E402
import traceback  # noqa: E402
from multiprocessing.connection import Connection  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402


class Refused(Exception):
    """The request names nothing that exists."""


class Server:
    """MindSpore on one device.

    Args:
        device: ``Ascend``, ``GPU``, ``CPU``, or "" for Ascend where there is one and else the CPU.
        index: which device of that kind.
    """

    def __init__(self, device: str, index: int) -> None:
        import mindspore

        self.ms: Any = mindspore
        self.device = device or ("Ascend" if _has_ascend(mindspore) else "CPU")
        self.index = index
        if self.device == "CPU":
            mindspore.set_device("CPU")
        else:
            mindspore.set_device(self.device, index)
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE, pynative_synchronize=True)

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """What runs here."""
        return {"mindspore": self.ms.__version__, "device": self.device, "index": self.index}

    # -- values ---------------------------------------------------------------------------------------------------

    def tensor(self, packed: dict[str, Any]) -> Any:
        """A tensor of MindSpore's with memory of its own."""
        ms, dtype, data = self.ms, packed["dtype"], packed["data"]
        made = ms.Tensor(np.array(data, copy=True, order="C"))
        if dtype == "bfloat16":
            made = made.astype(ms.bfloat16)
        if packed["view"] is not None:
            from mindspore.ops.auto_generate import AsStrided

            made = AsStrided()(made, *packed["view"])
        return made

    def array(self, tensor: Any) -> dict[str, Any]:
        """The values of a tensor, and the name of its dtype."""
        ms = self.ms
        dtype = str(tensor.dtype).removeprefix("mindspore.").lower().rstrip("_")
        if dtype == "bfloat16":
            tensor = tensor.astype(ms.float32)
        return {"dtype": dtype, "data": np.array(tensor.asnumpy(), copy=True), "view": None}

    def value(self, packed: tuple[str, Any], tensors: list[Any]) -> Any:
        """An argument."""
        tag, body = packed
        if tag == "tensor":
            return tensors[body]
        if tag == "dtype":
            return getattr(self.ms, body if body != "bool" else "bool_")
        if tag in ("list", "tuple"):
            built = [self.value(item, tensors) for item in body]
            return built if tag == "list" else tuple(built)
        if tag == "dict":
            return {key: self.value(item, tensors) for key, item in body.items()}
        return slice(*body) if tag == "slice" else body

    def packed(self, value: Any, found: list[Any]) -> tuple[str, Any]:
        """A result; its tensors are appended to ``found``."""
        if isinstance(value, self.ms.Tensor):
            found.append(value)
            return "tensor", len(found) - 1
        if isinstance(value, dict):
            return "dict", {key: self.packed(item, found) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return kind, [self.packed(item, found) for item in value]
        if value is None or value is ... or isinstance(value, (bool, int, float, complex, str)):
            return "plain", value
        if isinstance(value, np.generic):
            return "plain", value.item()
        return "dtype", str(value).removeprefix("mindspore.").lower().rstrip("_")

    # -- calls ----------------------------------------------------------------------------------------------------

    def function(self, name: str) -> Any:
        """``mindspore.mint.nn.functional.softmax``, or a method of Tensor."""
        found = self.ms
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        if found is None or not callable(found):
            raise Refused(f"MindSpore {self.ms.__version__} has no {name}")
        return found

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a function; with ``starts``, its gradients instead of its result."""
        self.ms.set_seed(request["seed"])
        self.ms.manual_seed(request["seed"])
        tensors = [self.tensor(packed) for packed in request["tensors"]]
        before = [self.array(tensor) for tensor in tensors]
        fn = self.function(request["fn"])
        weights: dict[int, Any] = {}
        if request["made"] is not None:
            fn, weights = self.cell(fn, request["made"], tensors)
        if request["starts"] is not None:
            return {"tensors": self.gradients(request, fn, tensors, weights)}
        args, kwargs = self.value(request["args"], tensors), self.value(request["kwargs"], tensors)
        found: list[Any] = []
        output = self.packed(fn(*args, **kwargs), found)
        changed: dict[int, Any] = {}
        for i, was in enumerate(before):
            now = self.array(weights.get(i, tensors[i]))
            if now["data"].tobytes() != was["data"].tobytes() or now["data"].shape != was["data"].shape:
                changed[i] = now
        return {"output": output, "tensors": [self.array(tensor) for tensor in found], "changed": changed}

    def cell(self, kind: Any, made: dict[str, Any], tensors: list[Any]) -> tuple[Any, dict[int, Any]]:
        """A module with its parameters, and those by the number of the tensor that they were given as."""
        cell = kind(*self.value(made["args"], tensors), **self.value(made["kwargs"], tensors))
        cell.set_train(made["training"])
        weights = {}
        for name, i in made["state"].items():
            weight = getattr(cell, name, None)
            if isinstance(weight, self.ms.Parameter):
                weight = self.ms.Parameter(tensors[i], name=weight.name, requires_grad=weight.requires_grad)
                setattr(cell, name, weight)
                weights[i] = weight
            elif isinstance(weight, self.ms.Tensor):
                setattr(cell, name, tensors[i])
                weights[i] = getattr(cell, name)
            else:
                raise Refused(f"{kind.__name__} has no parameter called {name}")
        return cell, weights

    def gradients(
        self, request: dict[str, Any], fn: Any, tensors: list[Any], weights: dict[int, Any]
    ) -> list[dict[str, Any]]:
        """Gradients of the results that have a start, with respect to the tensors numbered in ``wanted``."""
        starts, wanted = request["starts"], request["wanted"]
        own = [i for i in wanted if i not in weights]

        def forward(*given: Any) -> Any:
            here = list(tensors)
            for i, tensor in zip(own, given, strict=True):
                here[i] = tensor
            found: list[Any] = []
            self.packed(fn(*self.value(request["args"], here), **self.value(request["kwargs"], here)), found)
            chosen = tuple(found[i] for i in starts)
            return chosen if len(chosen) > 1 else chosen[0]

        given = [self.tensor(packed) for packed in starts.values()]
        start = tuple(given) if len(given) > 1 else given[0]
        parameters = [weights[i] for i in wanted if i in weights]
        operation = self.ms.ops.GradOperation(get_all=bool(own), get_by_list=bool(parameters), sens_param=True)
        grad = operation(forward, self.ms.ParameterTuple(parameters)) if parameters else operation(forward)
        made = grad(*[tensors[i] for i in own], start)
        of_own, of_weights = made if own and parameters else ((made, ()) if own else ((), made))
        by_number = dict(zip(own, of_own, strict=True))
        by_number.update(zip((i for i in wanted if i in weights), of_weights, strict=True))
        return [self.array(by_number[i]) for i in wanted]

    def signatures(self, request: dict[str, Any]) -> dict[str, Any]:
        """Public callables of a module and the names of their parameters, None where they can't be told."""
        found = {}
        home = self.ms
        for part in request["module"].split(".")[1:]:
            home = getattr(home, part)
        listed = set(getattr(home, "__all__", ()))
        for name in dir(home):
            value = getattr(home, name)
            if name.startswith("_") or inspect.ismodule(value) or not callable(value):
                continue
            try:
                kinds = list(inspect.signature(value).parameters.values())
            except (TypeError, ValueError):
                kinds = []
            names = [p.name for p in kinds if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            loose = not kinds or any(p.kind is p.VAR_KEYWORD for p in kinds)
            is_class = isinstance(value, type)
            found[name] = {"names": None if loose else names, "listed": name in listed, "is_class": is_class}
        return found


def _has_ascend(mindspore: Any) -> bool:
    try:
        return bool(mindspore.hal.is_available("Ascend"))
    except Exception:
        try:
            return bool(mindspore.device_context.ascend.is_available())
        except Exception:
            return False


def main() -> None:
    """Answer until the other side goes."""
    descriptor, device, index = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    connection = Connection(descriptor)
    os.set_inheritable(descriptor, False)  # what MindSpore starts must not keep the other side waiting
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # asked where it is before it is ended
    server: Any = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            if server is None:
                server = Server(device, index)
            does = {"hello": server.hello, "call": server.call, "signatures": server.signatures}
            answer = does[request["do"]](request)
        except Exception as error:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"raised": kinds, "text": str(error), "traceback": text}
        connection.send(answer)


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    main()
