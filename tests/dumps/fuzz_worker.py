"""Mutate a dump many times, list, build and run its calls each time, and report what went wrong: see test_fuzz.py."""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

SOURCE, OUTSIDE, COUNT, SEED = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
RNG = random.Random(SEED)
ESCAPES: list[str] = []
WATCHING = False
LIMIT = 20  # seconds that one mutation may take on a busy machine

NUMBERS = [0, -1, 1, 2, 7, 1 << 31, 1 << 40, 1 << 63, 1 << 64, -(1 << 70), 10**400, 0.5, -0.0, 1e308, 1e-320]
WORDS = [
    "", "torch", "torch.float32", "torch.float16", "torch.int64", "torch.Tensor", "mindspore.Tensor", "slice",
    "ellipsis", "torch.Size", "torch.dtype", "torch.device", "torch.ProcessGroup", "npu:0", "NaN", "None", "\x00",
    "\ud83d\ude00", "a" * 300, "../" * 8 + "etc/passwd", "/etc/passwd", f"{OUTSIDE}/secret.pt",
    "../../../outside/secret.pt",
    "..", ".", "dump.json", "evil.pt", "link.pt", f"{OUTSIDE}/written", "x); import os; os.abort()", "\n", "\u202e",
    "{}", "%s%n",
]  # fmt: skip
PIECES = ["", '"', "{", "}", "[", "]", ",", ":", "NaN", "\\", "\x00", "9" * 5000]
NAMES = [
    "Torch.load", "Torch.save", "Torch.from_file", "Torch.os.system", "Torch.hub.load", "Torch.import_ir_module",
    "Tensor.apply_", "Tensor.__class__", "Functional.importlib.import_module", "Aten.from_file",
    "Torch.set_num_threads", "Distributed.all_reduce", "NPU.npu_swiglu", "Module.fc.Linear", "VF.lstm", "Torch.compile",
    "Tensor.map_", "Torch.relu", "Tensor.view", "Torch.exp", "Functional.embedding", "Tensor.resize_", "Tensor.set_",
]  # fmt: skip


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Sees what the interpreter is asked to do."""
    if not WATCHING:
        return
    if event == "open":
        path = arguments[0]
        if isinstance(path, (str, bytes)):
            where = os.path.realpath(os.fsdecode(path))
            if where.startswith((OUTSIDE, "/etc/passwd")):
                ESCAPES.append(f"opened {where}")
    elif event == "pickle.find_class":
        ESCAPES.append(f"pickle asked for {arguments}")
    elif event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "shutil.rmtree"):
        ESCAPES.append(f"{event} {arguments}")


def mutated(content: dict[str, Any]) -> str:
    """The dump as text with one to three things changed."""
    content = copy.deepcopy(content)
    for _ in range(RNG.choice((1, 1, 1, 2, 3))):
        change_value(content)
    text = json.dumps(content)
    choice = RNG.random()
    if choice < 0.75:
        return text
    at = RNG.randrange(len(text))
    if choice < 0.82:
        return text[:at]
    if choice < 0.88:
        return (
            text[:at]
            + RNG.choice(["", '"', "{", "}", "[", "]", ",", ":", "NaN", "\\", "\x00", "9" * 5000])
            + text[at + 1 :]
        )
    if choice < 0.92:
        end = min(at + RNG.randrange(1, 400), len(text))
        return text[:at] + text[at:end] * 2 + text[end:]
    if choice < 0.96:
        return text[:at] + text[min(at + RNG.randrange(1, 400), len(text)) :]
    depth = RNG.choice((65, 1_000, 100_000))
    return text[:at] + RNG.choice("[{") * depth + text[at:]


def change_value(content: dict[str, Any]) -> None:
    """Change, remove, double or move something anywhere in the tree."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(content)
    node, key = RNG.choice(places)
    kind = RNG.random()
    if kind < 0.2:
        node[key] = RNG.choice(NUMBERS)
    elif kind < 0.45:
        node[key] = RNG.choice(WORDS)
    elif kind < 0.55:
        node[key] = RNG.choice([None, True, False, [], {}, float("nan"), float("inf"), [[[]]], {"type": {}}])
    elif kind < 0.65:
        del node[key]
    elif kind < 0.8:
        other, place = RNG.choice(places)
        if (isinstance(other, dict) and place in other) or (isinstance(other, list) and place < len(other)):
            node[key] = copy.deepcopy(other[place])
    elif kind < 0.9 and isinstance(node, dict):
        node[f"{RNG.choice(NAMES)}.{RNG.randrange(3)}.{RNG.choice(('forward', 'backward'))}"] = node.pop(key)
    elif isinstance(node, list):
        node.insert(RNG.randrange(len(node) + 1), copy.deepcopy(node[key]))
    elif isinstance(node, dict):
        node[RNG.choice(WORDS)] = node[key]


def break_a_file(folder: Path, originals: dict[str, bytes]) -> None:
    """Now and then one of the tensors' files is broken too."""
    for name, data in originals.items():
        if (folder / name).read_bytes() != data:
            (folder / name).write_bytes(data)
    if not originals or RNG.random() < 0.6:
        return
    name = RNG.choice(sorted(originals))
    data = bytearray(originals[name])
    for _ in range(RNG.choice((1, 3, 20))):
        data[RNG.randrange(len(data))] = RNG.randrange(256)
    (folder / name).write_bytes(bytes(data[: RNG.choice((len(data), len(data), RNG.randrange(len(data))))]))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, (f"{OUTSIDE}/written", "w")


def main() -> None:
    """Run them all and print one line of JSON."""
    global WATCHING
    import torch

    from pytest_ascend.cases.from_dump import pendings
    from pytest_ascend.cases.pending import CaseUnavailable, Pending

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    folder = SOURCE.parent / "dump_tensor_data"
    originals = {path.name: path.read_bytes() for path in folder.glob("*.pt")} if folder.exists() else {}
    folder.mkdir(exist_ok=True)
    torch.save([Evil()], folder / "evil.pt")
    (folder / "link.pt").symlink_to(f"{OUTSIDE}/secret.pt")
    content = json.loads(SOURCE.read_text())
    for listed in pendings(SOURCE):  # imports what there is to import
        if isinstance(listed, Pending) and not listed.not_runnable:
            listed.build()[0].build(torch.device("cpu")).call()
    sys.addaudithook(audit)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    report: dict[str, Any] = {"mutations": 0, "refused": 0, "built": 0, "called": 0, "slow": []}
    for turn in range(COUNT):
        SOURCE.write_bytes(mutated(content).encode("utf-8", "surrogatepass"))
        break_a_file(folder, originals)
        signal.alarm(LIMIT)
        start = time.process_time()
        WATCHING = True
        try:
            for listed in pendings(SOURCE):
                if isinstance(listed, Pending) and not listed.not_runnable:
                    one(listed, report)
        except CaseUnavailable as error:
            one_line(error)
            report["refused"] += 1
        finally:
            WATCHING = False
            signal.alarm(0)
        if time.process_time() - start > 5:
            report["slow"].append(turn)
        report["mutations"] += 1
    print(json.dumps({**report, "escapes": ESCAPES[:5]}))


def one_line(error: Exception) -> None:
    """A refusal is one sentence."""
    if "\n" in str(error) or not str(error).strip():
        raise RuntimeError(f"not a sentence: {error!r}")


def one(listed: Any, report: dict[str, Any]) -> None:
    """Build one case and call it on the CPU, as a comparison would."""
    import torch

    from pytest_ascend.cases.pending import CaseUnavailable

    try:
        case, _ = listed.build()
    except CaseUnavailable as error:
        one_line(error)
        return
    report["built"] += 1
    try:
        case.build(torch.device("cpu")).call()
        report["called"] += 1
    except Exception:  # what an operator raises for arguments that aren't its own is the call's result
        pass


if __name__ == "__main__":
    main()
