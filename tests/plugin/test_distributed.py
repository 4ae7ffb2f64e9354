"""`ascend_distributed`: real processes over gloo, right, wrong on one rank, hanging, raising, dying."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
import torch

pytest.importorskip("torch.distributed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

WHOLE = pytest.mark.skipif(os.environ.get("ASCEND_WHOLE") != "1", reason="takes long: ASCEND_WHOLE=1")
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
    """``run(body of a test)``: the result and its records."""
    pytester.makepyfile(bodies=BODIES)

    def one(text: str, *options: str):
        pytester.makepyfile(
            test_it=f"import pytest, torch\nimport bodies\n\ndef test_it(ascend_distributed):\n    {text}\n"
        )
        done = pytester.runpytest_subprocess("--ascend-compare=emulated", "--ascend-json=r.json", "-q", *options)
        path = pytester.path / "r.json"
        return done, json.loads(path.read_text())["results"] if path.exists() else []

    return one


def left_behind() -> list[str]:
    """Processes of ranks that are still there."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if "ascend-ranks-" in line]


def test_every_collective_is_judged(run) -> None:
    done, (record,) = run("assert len(ascend_distributed(bodies.everything, torch.ones(3)).returned) == 2")
    done.assert_outcomes(passed=1)
    assert record["verdict"] == "PASS"
    assert record["target"] == "2 ranks over gloo on the CPU"
    assert [one["path"] for one in record["outputs"]] == ["rank 0: 7 collectives", "rank 1: 7 collectives"]


def test_ddp_on_three_ranks_agrees_with_one(run) -> None:
    text = "ascend_distributed(bodies.train, torch.randn(12, 6), world_size=3, reference=bodies.alone)"
    done, (record,) = run(text)
    done.assert_outcomes(passed=1)
    assert any(one["path"] == "rank 2: result[0]" for one in record["outputs"])
    assert any(one["path"].startswith("rank 2: ") and "collective" in one["path"] for one in record["outputs"])


def test_a_wrong_reduction_on_one_rank_is_found_and_the_rank_is_named(run) -> None:
    done, (record,) = run("ascend_distributed(bodies.broken, torch.randn(64))")
    done.assert_outcomes(failed=1)
    wrong = [one for one in record["outputs"] if one["verdict"] == "FAIL"]
    assert [one["path"] for one in wrong] == ["rank 1: collective 1, all_reduce"]
    assert "all_reduce(sum, float32[64]) gave rank 1 a wrong result" in record["reason"]
    assert "bodies.py:" in record["reason"]
    assert record["kind"] == "bias"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "hangs",
            r"rank 1 hung after collective number 0, at .*bodies.py:\d+ in hangs; rank 0 waits in all_reduce at ",
        ),
        (
            "leaves",
            r"rank 1 returned without joining collective number 0, all_reduce at bodies.py:\d+, in which rank 0",
        ),
    ],
)
def test_a_rank_that_hangs_is_named_within_its_limit_and_leaves_nothing(run, body: str, sentence: str) -> None:
    done, (record,) = run(f"ascend_distributed(bodies.{body}, timeout=4)")
    done.assert_outcomes(failed=1)
    assert record["verdict"] == "CRASH"
    assert re.search(sentence, record["reason"]), record["reason"]
    assert body == "leaves" or record["reason"].endswith("ended after 4 s")
    assert left_behind() == []


@WHOLE
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
    done, records = run(f"ascend_distributed(bodies.{body}, timeout=60)")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([sentence])
    assert records == []
    assert left_behind() == []


@WHOLE
def test_what_compares_nothing_is_no_pass(run) -> None:
    done, (record,) = run("ascend_distributed(bodies.silent, world_size=1)")
    done.assert_outcomes(failed=1)
    assert record["verdict"] == "VACUOUS"


def test_what_can_not_be_run_is_one_sentence(run) -> None:
    done, _ = run("ascend_distributed(lambda rank: 1)")
    done.stdout.fnmatch_lines(["*ValueError: *<lambda> runs in processes of its own*define it at the top of a module"])
    done, _ = run("ascend_distributed(bodies.silent, world_size=0)")
    done.stdout.fnmatch_lines(["*ValueError: world_size=0: give a whole number of ranks, 1 or more"])


def test_without_the_option_it_is_skipped(pytester) -> None:
    pytester.makepyfile("def test_it(ascend_distributed): pass")
    pytester.runpytest_subprocess().assert_outcomes(skipped=1)
