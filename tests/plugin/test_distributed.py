"""`ascend_distributed`: real processes over gloo, right, wrong on one rank, hanging, raising, dying."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import torch

from pytest_ascend.distributed import Distributed
from pytest_ascend.run import ranks

pytest.importorskip("torch.distributed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

BODIES = """
import os, time
import torch, torch.distributed as dist
from torch import nn

def everything(rank, x):
    dist.all_reduce(x)
    parts = [torch.empty_like(x) for _ in range(rank.world_size)]
    dist.all_gather(parts, x * (rank.rank + 1))
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.arange(4.0) + rank.rank, op=dist.ReduceOp.MAX)
    dist.broadcast(out, 1)
    work = dist.all_reduce(out, op=dist.ReduceOp.PRODUCT, async_op=True)
    work.wait()
    many = torch.arange(4.0) * (rank.rank + 1)
    got = torch.empty(4)
    dist.all_to_all_single(got, many)
    dist.scatter(out, [torch.ones(2), torch.zeros(2)] if rank.rank == 0 else None, src=0)
    dist.barrier()
    return x

def train(rank, batch):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(model)
    share = batch.chunk(rank.world_size)[rank.rank]
    model(share).square().mean().backward()
    return [p.grad for p in model.parameters()]

def alone(batch):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model(batch).square().mean().backward()
    return [p.grad for p in model.parameters()]

def broken(rank, x):
    if rank.rank == 1:
        def wrong(tensors, group, *rest):
            work = dist.ProcessGroup.unbox(group)._get_backend(torch.device("cpu")).allreduce(tensors)
            work.wait()
            tensors[0].mul_(1.01)
            return tensors, work.boxed()

        planted = torch.library.Library("c10d", "IMPL")
        planted.impl("allreduce_", wrong, "CPU")
    dist.broadcast(x, 0)
    dist.all_reduce(x)

def hangs(rank):
    x = torch.ones(2)
    dist.all_reduce(x)
    if rank.rank == 1:
        time.sleep(1000)
    dist.all_reduce(x)

def leaves(rank):
    x = torch.ones(2)
    if rank.rank == 0:
        dist.all_reduce(x)

def raises(rank):
    if rank.rank == 1:
        raise ValueError("no such shard")
    dist.all_reduce(torch.ones(2))

def dies(rank):
    dist.all_reduce(torch.ones(2))
    if rank.rank == 0:
        os.abort()
    dist.all_reduce(torch.ones(2))

def silent(rank):
    return rank.rank
"""


@pytest.fixture
def run(pytester):
    """``run(test_a="its body", ...)``: the result and the records by name."""
    pytester.makepyfile(bodies=BODIES)

    def all_of(**tests: str):
        text = "".join(f"def {name}(ascend_distributed):\n    {body}\n\n" for name, body in tests.items())
        pytester.makepyfile(test_it=f"import pytest, torch\nimport bodies\n\n{text}")
        done = pytester.runpytest_subprocess("--ascend-compare=emulated", "--ascend-json=r.json", "-q")
        path = pytester.path / "r.json"
        records = json.loads(path.read_text())["results"] if path.exists() else []
        return done, {record["nodeid"].partition("::")[2]: record for record in records}

    return all_of


def left_behind() -> list[str]:
    """Processes of ranks that are still there."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if "ascend-ranks-" in line]


def test_right_and_wrong_and_hanging(run) -> None:
    done, found = run(
        test_right="assert len(ascend_distributed(bodies.everything, torch.ones(3)).returned) == 2",
        test_ddp="ascend_distributed(bodies.train, torch.randn(12, 6), world_size=3, reference=bodies.alone)",
        test_wrong="ascend_distributed(bodies.broken, torch.randn(64))",
        test_hangs="ascend_distributed(bodies.hangs, timeout=4)",
    )
    done.assert_outcomes(passed=2, failed=2)
    right, ddp, broken, hangs = (found[f"test_{name}"] for name in ("right", "ddp", "wrong", "hangs"))

    assert right["verdict"] == "PASS"
    assert right["target"] == "2 ranks over gloo on the CPU"
    assert [one["path"] for one in right["outputs"]] == ["rank 0: 7 collectives", "rank 1: 7 collectives"]

    paths = [one["path"] for one in ddp["outputs"]]
    assert "rank 2: result[0]" in paths
    assert any(path.startswith("rank 2: ") and "collective" in path for path in paths)

    wrong = [one for one in broken["outputs"] if one["verdict"] == "FAIL"]
    assert [one["path"] for one in wrong] == ["rank 1: collective 1, all_reduce"]
    assert "all_reduce(sum, float32[64]) gave rank 1 a wrong result" in broken["reason"]
    assert "bodies.py:" in broken["reason"]
    assert broken["kind"] == "bias"

    assert hangs["verdict"] == "CRASH"
    sentence = r"rank 1 hung after collective number 0, at .*bodies.py:\d+ in hangs; rank 0 waits in all_reduce"
    assert re.search(sentence, hangs["reason"]), hangs["reason"]
    assert hangs["reason"].endswith("ended after 4 s")
    assert left_behind() == []


@pytest.mark.whole
def test_a_rank_that_leaves_is_named(run) -> None:
    done, found = run(test_leaves="ascend_distributed(bodies.leaves, timeout=4)")
    done.assert_outcomes(failed=1)
    record = found["test_leaves"]
    assert record["verdict"] == "CRASH"
    assert "rank 1 returned without joining collective number 0, all_reduce at bodies.py:" in record["reason"]
    assert left_behind() == []


@pytest.mark.whole
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raises", "*RankRaised: rank 1 raised ValueError: no such shard, at bodies.py:*"),
        (
            "dies",
            "*RankRaised: rank 0 died of SIGABRT (abort), its last collective number 0 (all_reduce at bodies.py:*",
        ),
    ],
)
def test_who_raises_or_dies_is_named(run, body: str, sentence: str) -> None:
    done, found = run(test_it=f"ascend_distributed(bodies.{body}, timeout=60)")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([sentence])
    assert found == {}
    assert left_behind() == []


@pytest.mark.whole
def test_what_compares_nothing_is_no_pass(run) -> None:
    done, found = run(test_it="ascend_distributed(bodies.silent, world_size=1)")
    done.assert_outcomes(failed=1)
    assert found["test_it"]["verdict"] == "VACUOUS"


def test_what_can_not_be_run_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"<lambda> runs in processes of its own.*define it at the top of a module"):
        ranks.name_of(lambda rank: 1)
    with pytest.raises(ValueError, match="world_size=0: give a whole number of ranks, 1 or more"):
        Distributed(None, None, 0, None)(ranks.name_of, world_size=0)


def test_without_the_option_it_is_skipped(pytester) -> None:
    pytester.makepyfile("def test_it(ascend_distributed): pass")
    pytester.runpytest_inprocess("-p", "no:hypothesispytest").assert_outcomes(skipped=1)
