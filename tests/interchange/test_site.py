"""The folder of `--format web` in Debian's Chromium: the page computes what `velogan translate` computes, and asks
nobody but its host."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from velogan.interchange import site
from velogan.interchange.bundle import ExportOptions, write_export
from velogan.interchange.export import export
from velogan.interchange.hub import resolve_model_path
from velogan.translate.files import translate
from velogan.translate.model import Translator, load_translator

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: the extra onnx")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
RUNTIME = Path("~/.cache/velogan").expanduser() / site.RUNTIME  # the tests' own cache is new each time


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *entries: object) -> None: ...


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.skipif(not RUNTIME.is_file(), reason=f"there is no {RUNTIME}: `velogan export --format web` fetches it")
def test_the_page_computes_what_translate_does_without_other_hosts(tmp_path: Path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    model, out = resolve_model_path(Path("apples2oranges")), tmp_path / "site"
    assert write_export(model, out, format="web", options=ExportOptions(onnxruntime=RUNTIME))["half"]
    down, across = np.mgrid[:70, :90]
    colours = np.stack([down * 3, across * 2, (down + across) % 256], axis=-1).astype(np.uint8)
    Image.fromarray(colours).save(tmp_path / "one.png")
    translate(load_translator(model), tmp_path / "one.png", tmp_path / "expected.png")
    handler = functools.partial(_Quiet, directory=str(out))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, requests, errors = f"http://127.0.0.1:{server.server_address[1]}/", [], []
        env = {**os.environ, "HOME": str(tmp_path)}
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env=env)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("request", lambda request: requests.append((request.method, request.url)))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{url}?by=wasm")
        page.wait_for_selector("#drop:not([hidden])")
        page.set_input_files("#file", str(tmp_path / "one.png"))
        page.wait_for_selector("#result:not([hidden]), #error:not([hidden])", timeout=120_000)
        assert page.locator("#error").is_hidden(), page.inner_text("#error")
        with page.expect_download() as loading:
            page.click("#download")
        loading.value.save_as(tmp_path / "result.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
        server.shutdown()
    result, expected = (
        np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"), float) for name in ("result", "expected")
    )
    assert result.shape == expected.shape
    assert 10 * np.log10(255**2 / np.mean((result - expected) ** 2)) >= 40
    assert not errors
    assert all(method == "GET" and address.startswith((url, "blob:", "data:")) for method, address in requests)


def test_weights_stay_float32_if_float16_differs_visibly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = load_translator(resolve_model_path(Path("apples2oranges")))
    small = export(model, tmp_path / "half.onnx", format="web")
    monkeypatch.setattr("velogan.interchange.export.MAX_DIFFERENCE_HALF", 0)
    full = export(model, tmp_path / "full.onnx", format="web")
    assert (small.half, full.half) == (True, False)
    assert full.max_difference < small.max_difference
    assert small.megabytes < 0.7 * full.megabytes


def test_rejects_models_for_which_browsers_have_no_pictures(tmp_path: Path):
    model = load_translator(resolve_model_path(Path("apples2oranges")))
    scan = Translator(
        model.net, multiple=4, device=model.device, header={"input": {"dtype": "float32", "range": [-160, 240]}}
    )
    with pytest.raises(ValueError, match="reads values from -160 to 240"):
        site.check_for_browsers(scan)
    (tmp_path / "other.tgz").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"onnxruntime=.*other\.tgz is not npm's onnxruntime-web-1\.30\.0\.tgz"):
        site.fetch_runtime(tmp_path / "other.tgz")
