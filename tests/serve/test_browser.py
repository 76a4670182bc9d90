"""The page in a real browser: Debian's Chromium, where there is one."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from velogan.data.pictures.images import Picture, decode, encode

from .conftest import Served, png, served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env={**os.environ, **home})
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server with small limits, for all tests of this file."""
    with served(upload_bytes=50_000, pixels=10_000, with_uncertainty=("a2b",)) as result:
        yield result


@pytest.fixture(scope="module")
def window(chromium: Any, server: Served) -> Iterator[tuple[Any, list[str]]]:
    """A page as wide as a phone, and its problems: errors, and requests to other servers."""
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda entry: problems.append(entry.text) if "status of 4" not in entry.text else None)
    own = (server.url, "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else problems.append(request.url))
    yield page, problems
    context.close()


@pytest.fixture
def page(window: tuple[Any, list[str]], server: Served) -> Iterator[Any]:
    """The page, reloaded."""
    page, problems = window
    page.goto(server.url)
    page.wait_for_selector("#drop:not([hidden])")
    yield page
    assert not problems


def _choose_file(page: Any, name: str, data: bytes) -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})


def _fits(page: Any) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_translates_a_chosen_picture(page: Any, server: Served, tmp_path: Path):
    assert page.title() == "nights"
    assert page.locator(".way").all_inner_texts() == ["day → night", "night → day"]
    deep = np.random.default_rng(0).integers(0, 60000, (40, 64, 3)).astype(np.uint16)
    _choose_file(page, "deep.png", encode(".png", Picture(deep)))
    page.wait_for_selector("#result:not([hidden])")
    assert "64 × 40 pixels" in page.inner_text("#facts")
    assert _fits(page)

    sizes = page.evaluate("[before, after].map((image) => [image.clientWidth, image.clientHeight, image.naturalWidth])")
    assert sizes[0] == sizes[1]
    assert sizes[0][2] == 64
    with page.expect_download() as loading:
        page.click("#download")
    assert loading.value.suggested_filename == "deep.png"
    loading.value.save_as(tmp_path / "deep.png")
    np.testing.assert_array_equal(decode((tmp_path / "deep.png").read_bytes()).pixels, 65535 - deep)


def test_shows_uncertain_regions_in_red(page: Any):
    page.check("#show-uncertainty")
    _choose_file(page, "dark.png", png(size=(60, 60), value=20))
    page.wait_for_selector("#uncertainty-map:not([hidden])")
    assert "uncertainty 50 % on average, 100 % at its highest" in page.inner_text("#facts")
    page.focus("#slider")
    page.keyboard.press("Home")
    shot = np.asarray(Image.open(io.BytesIO(page.locator("#compare").screenshot())).convert("RGB"))
    (left, right) = (shot[-40, int(at * shot.shape[1])].astype(int) for at in (0.3, 0.7))
    assert left[0] - left[1] > 150
    assert abs(right[0] - right[1]) < 10
    page.uncheck("#show-uncertainty")
    page.wait_for_selector("#uncertainty-map", state="hidden")


def test_reports_errors_until_the_next_picture(page: Any):
    _choose_file(page, "vector.png", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#reason").startswith("Not a picture that can be read; send a complete JPEG, PNG")
    assert page.locator("#result").is_hidden()
    _choose_file(page, "heavy.png", bytes(60_000))
    playwright.expect(page.locator("#reason")).to_contain_text("takes up to 50 kB")
    _choose_file(page, "large.png", png(size=(101, 100), value=0))
    playwright.expect(page.locator("#reason")).to_contain_text("100x101 pixels")
    assert _fits(page)
    _choose_file(page, "right.png", png())
    page.wait_for_selector("#result:not([hidden])")
    assert page.locator("#error").is_hidden()


def test_takes_the_token_from_the_address_or_a_form(chromium: Any):
    token = "correct-horse-battery"
    with served(token=token) as server:
        for address in (f"{server.url}/#token={token}", f"{server.url}/#token=wrong"):
            context = chromium.new_context()
            page = context.new_page()
            page.goto(address)
            if not address.endswith(token):
                page.wait_for_selector("#enter:not([hidden])")
                page.fill("#token", token)
                page.keyboard.press("Enter")
            page.wait_for_selector("#drop:not([hidden])")
            assert page.locator("#error").is_hidden()
            assert "token" not in page.url
            _choose_file(page, "one.png", png())
            page.wait_for_selector("#result:not([hidden])")
            context.close()
