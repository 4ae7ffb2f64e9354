"""Memory, several devices, events, generators, `torch.npu` and `import torch_npu`."""

import gc
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from pytest_ascend.targets import emulator


def test_memory_rises_and_falls_with_tensors(no_leak):
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    t = torch.empty(1000, 1000, device="npu")
    assert torch.npu.memory_allocated() - before == 4_000_256  # rounded up to the allocator's 512-byte blocks
    assert torch.npu.max_memory_allocated() - before == 4_000_256
    del t
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before == 4_000_256
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == before


def test_views_cost_nothing_and_keep_memory_alive(no_leak):
    before = torch.npu.memory_allocated()
    t = torch.empty(1024, device="npu")
    v = t[10:20]
    assert torch.npu.memory_allocated() - before == 4096
    del t
    assert torch.npu.memory_allocated() - before == 4096
    del v
    assert torch.npu.memory_allocated() == before


def test_a_training_step_frees_all(no_leak):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).npu()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8, device="npu")).sum().backward()
        optimizer.step()


def test_an_operator_that_raises_frees_all(no_leak):
    with pytest.raises(RuntimeError):
        torch.ones(2, 3, device="npu") @ torch.ones(2, 3, device="npu")


def test_reserved_memory_and_the_cache(no_leak):
    t = torch.empty(3 << 20, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_reserved() >= torch.npu.memory_allocated()
    held = torch.npu.memory_reserved()
    del t
    assert torch.npu.memory_reserved() == held
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() < held


def test_statistics_have_the_real_names(no_leak):
    t = torch.empty(128, device="npu")
    stats = torch.npu.memory_stats()
    for name in (
        "allocated_bytes.all.current",
        "allocated_bytes.all.peak",
        "reserved_bytes.all.current",
        "allocation.all.current",
        "num_ooms",
    ):
        assert name in stats
    assert stats["allocated_bytes.all.current"] == torch.npu.memory_allocated()
    assert torch.npu.memory_stats_as_nested_dict()["allocation"]["all"]["current"] == stats["allocation.all.current"]
    assert "allocated" in torch.npu.memory_summary()
    del t


def test_out_of_memory_is_catchable_and_leaves_the_device_usable(no_leak):
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction((torch.npu.memory_allocated() + (1 << 20)) / total)
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 4.00 MiB"):
        torch.empty(1 << 20, device="npu")
    x = torch.ones(1 << 17, device="npu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.cat([x, x, x])
    assert torch.npu.OutOfMemoryError is torch.OutOfMemoryError
    del x
    gc.collect()
    assert torch.ones(4, device="npu").sum().item() == 4
    assert torch.npu.memory_stats()["num_ooms"] >= 2


def test_memory_fraction_is_checked():
    with pytest.raises(TypeError, match="float"):
        torch.npu.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match="range"):
        torch.npu.set_per_process_memory_fraction(1.5)


def test_two_devices_compute_and_count_apart(no_leak):
    assert torch.npu.device_count() == 2
    first, second = torch.npu.memory_allocated(0), torch.npu.memory_allocated(1)
    t = torch.ones(256, device="npu:1")
    assert t.device.index == 1
    assert (t + 1).device.index == 1
    assert (torch.npu.memory_allocated(0), torch.npu.memory_allocated(1)) == (first, second + 1024)
    assert t.to("npu:0").device.index == 0
    del t


def test_devices_dont_mix(no_leak):
    with pytest.raises(RuntimeError, match=r"npu:0 and npu:1|npu:1 and npu:0"):
        torch.ones(2, device="npu:0") + torch.ones(2, device="npu:1")


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"npu:7 does not exist.*2"):
        torch.ones(2, device="npu:7")
    with pytest.raises(RuntimeError, match="npu:7 does not exist"):
        torch.npu.set_device(7)
    with pytest.raises(ValueError, match="Expected a npu device"):
        torch.npu.set_device("cpu")


def test_the_current_device_is_where_npu_means(no_leak):
    torch.npu.set_device(1)
    assert torch.npu.current_device() == 1
    assert torch.ones(1, device="npu").device.index == 1
    assert torch.ones(1).to("npu").device.index == 1
    assert torch.ones(1).npu().device.index == 1
    assert nn.Linear(1, 1).to("npu").weight.device.index == 1
    with torch.npu.device("npu:0"):
        assert torch.ones(1).to("npu").device.index == 0
    assert torch.npu.current_device() == 1


def test_the_current_device_belongs_to_the_thread():
    torch.npu.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.npu.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


def test_backward_on_the_second_device(no_leak):
    layer = nn.Linear(4, 4).to("npu:1")
    layer(torch.randn(2, 4, device="npu:1")).square().sum().backward()
    assert layer.weight.grad.device == torch.device("npu:1")


def test_events_measure_milliseconds_and_insist_on_order():
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    x = torch.randn(300, 300, device="npu")
    x @ x
    end.record()
    torch.npu.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 10_000
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.npu.Event().elapsed_time(end)


def test_streams():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() is stream
        y = torch.ones(2, device="npu") + 1
    assert torch.npu.current_stream() is torch.npu.default_stream()
    stream.wait_stream(torch.npu.current_stream())
    assert stream.record_event().query()
    assert y.tolist() == [2, 2]


def test_seeding_repeats_and_devices_have_their_own_streams():
    torch.manual_seed(5)
    a, b = torch.randn(4, device="npu:0"), torch.randn(4, device="npu:0")
    torch.manual_seed(5)
    assert torch.equal(torch.randn(4, device="npu:0").cpu(), a.cpu())
    torch.npu.manual_seed_all(5)
    torch.randn(9, device="npu:1")
    torch.randn(4, device="npu:0")
    assert torch.equal(torch.randn(4, device="npu:0").cpu(), b.cpu())
    state = torch.npu.get_rng_state()
    c = torch.rand(3, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="npu").cpu(), c.cpu())
    assert torch.npu.initial_seed() == 5


def test_generators_for_the_device():
    g = torch.Generator(device="npu")
    assert g.device == torch.device("npu:0")
    assert isinstance(g, torch.Generator)
    g.manual_seed(1)
    a = torch.randn(3, generator=g, device="npu")
    g.manual_seed(1)
    assert torch.equal(torch.randn(3, generator=g, device="npu").cpu(), a.cpu())
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator().device.type == "cpu"


def test_pinned_memory():
    x = torch.randn(3)
    assert not x.is_pinned()
    p = x.pin_memory()
    assert p.is_pinned()
    assert torch.equal(p, x)
    assert p.pin_memory() is p
    assert p.to("npu", non_blocking=True).tolist() == p.tolist()
    with pytest.raises(RuntimeError, match="cannot pin"):
        x.npu().pin_memory()


def test_data_loader_with_pinned_memory():
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = [b for (b,) in torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)]
    assert all(b.is_pinned() for b in batches)
    assert torch.cat(batches).tolist() == [0, 1, 2, 3]


def test_torch_accelerator(no_leak):
    acc = torch.accelerator
    assert acc.current_accelerator().type == "npu"
    assert acc.is_available()
    assert acc.device_count() == 2
    acc.synchronize()
    before = acc.memory_allocated()
    t = torch.empty(256, device="npu")
    assert acc.memory_allocated() - before == 1024 == torch.npu.memory_allocated() - before
    assert acc.max_memory_allocated() >= before + 1024
    assert acc.memory_stats()["allocated_bytes.all.current"] == before + 1024
    del t
    torch.npu.set_device(1)
    assert acc.current_device_index() == 1


def test_generic_event_and_stream_exist():
    torch.Event(device="npu", enable_timing=True).record()
    assert torch.Stream(device="npu").device.type == "npu"


def test_names_units_and_identity():
    assert torch.npu.get_device_name() == torch.npu.get_device_name(1) == "Ascend910B3"
    assert torch.npu.get_soc_version() == 222
    properties = torch.npu.get_device_properties(0)
    assert properties.total_memory == 64 << 30
    assert properties.name == "Ascend910B3"
    assert torch.npu.is_available()
    assert torch.npu.is_initialized()


def test_import_torch_npu_works_and_says_that_it_is_emulated():
    import torch_npu
    from torch_npu.npu import utils

    assert "emulated" in torch_npu.__version__
    assert torch_npu.npu is torch.npu is sys.modules["torch_npu.npu"]
    assert utils is torch.npu.utils


def test_kernels_are_counted_and_views_are_not():
    x = torch.ones(4, device="npu")
    before = emulator.kernel_count()
    x.view(2, 2).t()
    assert emulator.kernel_count() == before
    x + x
    assert emulator.kernel_count() == before + 1


def test_unknown_soc_and_no_devices():
    with pytest.raises(ValueError, match="Ascend910A"):
        emulator.install("Ascend1")
    with pytest.raises(ValueError, match="at least one"):
        emulator.install(devices=0)


INSTALL = "from pytest_ascend.targets import emulator; emulator.install()\nimport torch\n"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_old_torch_gives_one_clear_line():
    result = run_python("import torch; torch.__version__ = '2.6.0'\n" + INSTALL)
    assert result.returncode
    assert "the emulated npu needs torch 2.13 or newer, this is 2.6.0" in result.stderr.splitlines()[-1]


def test_never_beside_the_real_torch_npu(tmp_path):
    (tmp_path / "torch_npu.py").write_text("")
    result = run_python(INSTALL, PYTHONPATH=str(tmp_path))
    assert result.returncode
    assert "torch_npu is installed" in result.stderr.splitlines()[-1]


def test_never_over_another_backend():
    code = "import torch; torch.utils.rename_privateuse1_backend('other')\n" + INSTALL
    result = run_python(code)
    assert result.returncode
    assert "another backend (other)" in result.stderr.splitlines()[-1]


@pytest.mark.whole
def test_environment_variables_choose_modes():
    code = INSTALL + "print(torch.nn.functional.gelu(torch.ones(1).npu()).item())"
    plain, exact = (float(run_python(code, TORCH_NPU_USE_COMPATIBLE_IMPL=v).stdout) for v in ("0", "1"))
    assert exact == torch.nn.functional.gelu(torch.ones(1)).item() != plain
    code = INSTALL + "print((torch.full((1,), 6e4).half().npu() * 2).item())"
    assert run_python(code, INF_NAN_MODE_ENABLE="0").stdout.strip() == "65504.0"
