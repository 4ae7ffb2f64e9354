"""The page of --ascend-html in a real Chromium: ``make test-pages``.

With ``ASCEND_SCREENSHOTS=DIR`` what it looks like is kept there, at two widths, dark and light.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif("ASCEND_PAGES" not in os.environ, reason="needs a browser: make test-pages")

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NAME = "<script>window.stolen=1</script><img src=x onerror=window.stolen=1>"
TESTS = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples" / "resnet")!r})
import pytest, torch
import pytest_ascend as pa
from resnet18 import ResNet18

def stale(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    y = torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if tuple(weight.shape) == (128, 64, 3, 3):
        y[:, -1] = y[:, -2]
    return y

def late(x, dim, half_to_float):
    y = torch._softmax(x, dim, half_to_float)
    y[:, 16:] *= 1.5
    return y

@pytest.fixture
def images(): return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

@pytest.fixture
def model(images):
    net = ResNet18().train()
    with torch.no_grad():
        for _ in range(3): net(images)
    return net.eval()

@pytest.mark.ascend(backward=False, checkpoints=["conv1", "layer1.0.conv1", "layer2.0.conv1", "layer3", "layer4", "fc"])
def test_resnet18(ascend_compare, model, images):
    with pa.emulator.override("aten::convolution", stale):
        ascend_compare(model, images)

@pytest.mark.parametrize("name", [{NAME!r}])
def test_softmax(ascend_compare, name):
    with pa.emulator.override("aten::_softmax", late):
        ascend_compare(torch.softmax, torch.linspace(-1, 1, 256).half().reshape(8, 32), dim=-1)

def test_overflow(ascend_compare):
    ascend_compare(lambda x: torch.exp(x * 2).sum(), torch.linspace(0, 9, 32).half())

@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_right(ascend_compare, dtype): ascend_compare(torch.relu, torch.linspace(-1, 1, 64).to(dtype))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a run with a planted fault in ResNet-18, beside timings as a gate makes them."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ascend-compare=emulated"]
    done = subprocess.run([*command, "--ascend-overflow", "--ascend-json=r.json"], cwd=folder, capture_output=True)
    assert done.returncode == 1, done.stdout[-2000:]
    content = json.loads((folder / "r.json").read_text())
    content["results"] += [timing("regressed", 1.31), timing("ok", 1.0), crash()]
    return content


def timing(verdict: str, ratio: float) -> dict[str, Any]:
    old = [1e-3 * (1 + 0.004 * (i * 7 % 5 - 2)) for i in range(12)]
    perf: dict[str, Any] = {"metric": "device", "old_s": 1e-3, "new_s": 1e-3 * ratio, "ratio": ratio}
    perf |= {"interval": [ratio * 0.985, ratio * 1.015], "detectable": 0.021, "against": "main", "threshold": 0.03}
    perf |= {"error": "", "old_each": old, "new_each": [t * ratio for t in old], "accept": "pytest x --ascend-update"}
    perf["history"] = [
        {"date": f"2026-01-{i + 1:02}", "commit": "abcdef123456", "seconds": t} for i, t in enumerate(old)
    ]
    row = {"name": "MatMulV2", "shapes": "8x128", "before_us": 200.0, "after_us": 510.0, "before_calls": 12.0}
    perf["operators"] = (
        [{**row, "after_calls": 12.0, "why": "each call takes longer"}] if verdict == "regressed" else []
    )
    plain = {"nodeid": f"test_time.py::test_{verdict}", "api": "encoder", "dtype": "", "verdict": verdict, "kind": None}
    plain |= {
        "reason": f"it is {100 * (ratio - 1):.0f} % slower",
        "criterion": "perf",
        "target": "npu:0",
        "metrics": {},
    }
    outcome = "failed" if verdict == "regressed" else "passed"
    return {**plain, "outcome": outcome, "checkpoints": {}, "reproducer": "pytest x", "perf": perf}


def crash() -> dict[str, Any]:
    plain = {
        "nodeid": "test_bad.py::test_abort",
        "api": "custom_op",
        "dtype": "float16",
        "verdict": "CRASH",
        "kind": None,
    }
    plain |= {"reason": "its process died of SIGSEGV", "criterion": "auto", "target": "npu:0", "metrics": {}}
    plain |= {
        "outcome": "failed",
        "checkpoints": {},
        "reproducer": "pytest test_bad.py",
        "preceding": ["test_bad.py::a"],
    }
    return {
        **plain,
        "crash": {"ending": "died of SIGSEGV", "again": "", "alone": "passed", "stack": ["aten::mm", "main"]},
    }


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The machine's own browser."""
    driver = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(
            f"there is no Chromium here: apt install chromium, or CHROMIUM=PATH (looked for {', '.join(BROWSERS)})"
        )
    with driver.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page that is open, with what it said to the console and which addresses it asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page, self.said, self.asked = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.first = [path.as_uri()]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def focused(self) -> str:
        return self.page.evaluate("(document.activeElement.closest('.finding') || document.activeElement).id")


@pytest.fixture(scope="module")
def path(results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pytest_ascend.report import html

    folder = os.environ.get("ASCEND_SCREENSHOTS") or tmp_path_factory.mktemp("page")
    found = Path(folder, "report.html")
    found.write_text(html.page(results), encoding="utf-8")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_quiet_asks_for_nothing_and_is_accessible(chromium, path, width, scheme) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # axe-core is put into the page, which the page's own policy rightly forbids.
    with Opened(chromium, path, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True) as it:
        for finding in it.page.query_selector_all("details"):
            finding.evaluate("one => { one.open = true }")
        assert it.page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(it.page).response["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found] == []
        assert it.said == []
        assert it.asked == it.first
        if folder := os.environ.get("ASCEND_SCREENSHOTS"):
            it.page.screenshot(path=Path(folder, f"{width}-{scheme}.png"), full_page=True)


def test_a_name_that_is_a_script_is_text(chromium, path) -> None:
    with Opened(chromium, path) as it:
        assert it.page.evaluate("window.stolen") is None
        assert NAME in it.page.inner_text("#findings")
        assert NAME in it.page.inner_text("#list")
        assert it.page.evaluate("document.images.length") == 0
        # And what got through all the same wouldn't run: the policy knows the page's own script only.
        it.page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.stolen = 1'}))"
        )
        it.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.stolen = 1\">')")
        it.page.wait_for_timeout(100)
        assert it.page.evaluate("window.stolen") is None
        assert len([said for said in it.said if "Content Security Policy" in said]) >= 2


def test_the_planted_fault_is_what_one_sees(chromium, path) -> None:
    with Opened(chromium, path) as it:
        model = it.page.locator(".finding", has_text="test_resnet18").first
        model.evaluate("one => { one.open = true }")
        assert "layer2.0.conv1" in model.inner_text()
        assert model.locator("svg.depth").count() >= 1
        assert "first divergence is at layer2.0.conv1" in model.locator("svg.depth").first.get_attribute("aria-label")
        softmax = it.page.locator(".finding", has_text="test_softmax").first
        assert softmax.locator("svg.histogram, svg.map").count() == 2
        slow = it.page.locator("#findings .finding", has_text="test_regressed")
        assert slow.locator("svg.strips").count() == 1


def test_the_keyboard_alone_is_enough(chromium, path) -> None:
    with Opened(chromium, path) as it:
        page = it.page
        page.keyboard.press("j")
        assert it.focused() == "finding-0"
        page.keyboard.press("j")
        assert it.focused() == "finding-1"
        page.keyboard.press("k")
        assert it.focused() == "finding-0"
        before = page.evaluate("document.getElementById('finding-0').open")
        page.keyboard.press("Enter")
        assert page.evaluate("document.getElementById('finding-0').open") is not before
        page.keyboard.press("/")
        assert it.focused() == "search"
        page.keyboard.type("relu bfloat16")
        assert page.inner_text("#found").startswith("1 of ")
        page.keyboard.press("Tab")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") in (None, "dark", "light")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        for _ in range(200):  # every stop can be seen
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement === document.body || document.activeElement.checkVisibility()")


def test_without_the_script_what_matters_is_there(chromium, path) -> None:
    with Opened(chromium, path, java_script_enabled=False) as it:
        assert "layer2.0.conv1" in it.page.content()
        assert "The list needs this page's own script" in it.page.content()
        assert not it.page.locator("#filter").is_visible()
        assert it.said == []


def test_ten_thousand_results_open_quickly(chromium, results, tmp_path) -> None:
    from pytest_ascend.report import html

    many = []
    for i in range(10_000):
        one = copy.deepcopy(results["results"][i % 2 if i < 300 else 3])
        one |= {"nodeid": f"tests/test_{i % 40}.py::test_op[{i}]", "api": f"torch.op_{i % 1200}", "reason": f"why {i}"}
        many.append(one)
    path = tmp_path / "many.html"
    path.write_text(html.page({**results, "results": many}), encoding="utf-8")
    assert path.stat().st_size <= 5_000_000
    with Opened(chromium, path) as it:
        assert it.page.evaluate("performance.getEntriesByType('navigation')[0].domComplete") < 3_000
        it.page.fill("#search", "op_77")
        assert it.page.locator(".results tbody tr").count() <= 100
        it.page.fill("#search", "")
        it.page.click("#next")
        assert it.page.inner_text("#at") == "101 to 200 of 10000"
        it.page.click("#more-apis")
        assert it.page.locator(".matrix tbody tr").count() == 1200
        assert it.said == []
