from __future__ import annotations

import base64
import io
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from velogan.data.pictures.images import Picture, decode, encode
from velogan.serve.pictures import result_name
from velogan.translate.files import translate
from velogan.translate.model import Translator

from .conftest import Negative, Served, Upload, png, served, until


def _pixels(data: bytes) -> np.ndarray:
    return decode(data).pixels


def _check_error(response: httpx.Response, status: int) -> str:
    """Return the text of an error, which must not show code."""
    assert response.status_code == status, response.text
    assert "Traceback" not in response.text
    assert "site-packages" not in response.text
    return response.text


def test_translates_a_picture(server: Served):
    data = png(size=(21, 13))
    result = server.translate(data, "café one.png", direction="b2a", preview="true").json()
    assert (result["name"], result["direction"]) == ("café one.png", "b2a")
    assert (result["width"], result["height"], result["format"], result["same_format"]) == (13, 21, "png", True)
    np.testing.assert_array_equal(_pixels(base64.b64decode(result["picture"])), 255 - _pixels(data))
    for side in ("before", "after"):
        head, _, body = result["preview"][side].partition(",")
        assert head == "data:image/jpeg;base64"
        assert _pixels(base64.b64decode(body)).shape == (21, 13, 3)


def test_returns_an_uncertainty_map_or_the_reason_why_there_is_none():
    flat = png(size=(16, 24), value=90)
    with served(with_uncertainty=("a2b",)) as server:
        assert server.client.get("/api/about").json()["uncertainty"] == ["a2b"]
        result = server.translate(flat, direction="a2b", uncertainty="true", preview="true").json()
        levels = _pixels(base64.b64decode(result["uncertainty"]["map"]))[..., 0]
        np.testing.assert_array_equal(levels, np.repeat([[255, 0]], 16, axis=0).repeat(12, axis=1))
        assert result["uncertainty"]["mean"] == 0.5
        assert result["uncertainty"]["highest"] == {"x": 0, "y": 0, "width": 2, "height": 2, "mean": 1.0}
        head, _, body = result["preview"]["uncertainty"].partition(",")
        assert head == "data:image/png;base64"
        assert decode(base64.b64decode(body)).alpha is not None
        assert server.translate(flat, direction="a2b").json()["uncertainty"] is None
        answer = server.translate(flat, direction="b2a", uncertainty="true")
        assert "no reverse generator for b2a" in _check_error(answer, 400)


def test_a_picture_in_tiles_has_no_uncertainty_map_and_says_why():
    with served(with_uncertainty=("a2b",), tile=32) as server:
        result = server.translate(png(size=(48, 48), value=90), uncertainty="true").json()
    assert result["picture"]
    assert result["uncertainty"] is None
    assert result["uncertainty_error"]


UNWRITABLE = ("animated.gif",)


def _files() -> dict[str, bytes]:
    """Return files by name, with properties that a translation keeps, or formats that it cannot write."""
    colour = np.random.default_rng(1).integers(0, 256, (24, 16, 3), np.uint8)
    image = Image.fromarray(colour)
    files: dict[str, bytes] = {}

    def save(name: str, picture: Image.Image = image, **options: Any) -> None:
        file = io.BytesIO()
        picture.save(file, {"jpg": "jpeg"}.get(name[-3:], Path(name).suffix[1:]), **options)
        files[name] = file.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.jpg", exif=exif, icc_profile=b"p" * 200)
    for name in UNWRITABLE:
        save(name)
    files["deep.png"] = encode(".png", Picture(colour.astype(np.uint16) * 257))
    return files


@pytest.mark.parametrize("name", _files())
def test_keeps_the_properties_of_a_file_as_translate_does(name: str, server: Served, tmp_path: Path):
    data = _files()[name]
    stored = f"{name}.png" if name in UNWRITABLE else name  # translate chooses by name, the server by content
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / stored).write_bytes(data)
    model = Translator(Negative(), multiple=4, device=torch.device("cpu"))
    assert translate(model, tmp_path / "in", tmp_path / "out").translated == 1
    (expected,) = (tmp_path / "out").iterdir()
    response = server.translate(data, name, answer="picture", preview="true")
    assert response.content == expected.read_bytes()
    assert response.headers["content-disposition"].endswith(
        f"{name[:-4].rstrip('.')}.png" if name in UNWRITABLE else name
    )
    result = server.translate(data, name, preview="true").json()
    assert result["same_format"] is (name not in UNWRITABLE)
    preview = decode(base64.b64decode(result["preview"]["after"].partition(",")[2]))
    assert preview.pixels.shape[:2] == (result["height"], result["width"])
    assert preview.pixels.dtype == np.uint8


def test_offers_only_the_directions_of_the_run():
    with served(directions=("b2a",)) as server:
        assert server.client.get("/api/about").json()["directions"] == {"b2a": "night → day"}
        assert server.translate(png()).json()["direction"] == "b2a"
        assert "send b2a" in _check_error(server.translate(png(), direction="a2b"), 400)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _bomb(side: int) -> bytes:
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    packed = zlib.compress(bytes(10**6), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _tiff_of_many_channels() -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(
        file, np.zeros((90, 90, 600), np.float32), compression="zlib", photometric="minisblack", planarconfig="contig"
    )
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("truncated.png", png()[:200], 422),
        ("flipped.png", png()[:60] + b"\0\0\0" + png()[63:], 422),
        ("empty.png", b"", 422),
        ("bomb.png", _bomb(50_000), 413),
        ("deep.tif", _tiff_of_many_channels(), 422),
        ("large.png", png(size=(101, 100), value=0), 413),
        ("vector.png", b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>', 422),
        ("page.png", b"<!doctype html><script>alert(1)</script>", 422),
        ("heavy.png", bytes(60_000), 413),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_rejects_hostile_uploads_and_continues_to_serve(name: str, data: bytes, status: int, server: Served):
    _check_error(server.translate(data, name), status)
    assert server.translate(png()).status_code == 200
    assert server.client.get("/healthz").json() == {"status": "ok", "waiting": 0}


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        ("../../etc/passwd.png", "passwd.png"),
        ("..\\windows\\one.png", "one.png"),
        ("/etc/one.png", "one.png"),
        ("right\u202egnp.exe", "rightgnp.png"),
        ("n" * 300 + ".png", "n" * 251 + ".png"),
        ("..", "...png"),
    ],
)
def test_removes_folders_and_unprintable_characters_from_names(sent: str, returned: str):
    assert result_name(sent, ".png") == returned


FORM = {"content-type": "multipart/form-data; boundary=x"}


def _form(name: str, data: bytes) -> bytes:
    """Return the bytes of a form, with `name` unescaped."""
    head = f'--x\r\nContent-Disposition: form-data; name="picture"; filename="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n--x--\r\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Starlette leaves a cut file open
@pytest.mark.parametrize(
    "sent",
    [
        {"json": {"picture": "x"}},
        {"data": {"picture": "words"}},
        {"files": {"direction": (None, "a2b")}},
        {"files": {"picture": (None, "words")}},
        {"files": {"picture": ("a.png", png())}, "data": {"direction": "up"}},
        {"files": {"picture": ("a.png", png())}, "data": {"colour": "red"}},
        {"content": _form("a.png", png())[:90], "headers": FORM},
        {"content": b"nonsense", "headers": FORM},
        {"content": b"", "headers": {"content-type": "multipart/form-data"}},
    ],
    ids=range(9),
)
def test_rejects_other_forms(sent: dict[str, Any], server: Served):
    response = server.client.post("/api/translate", **sent)
    assert response.status_code in (400, 422)
    _check_error(response, response.status_code)
    assert not server.net.batches


def test_rejects_requests_without_a_length_unread(server: Served):
    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(1000)

    _check_error(server.client.post("/api/translate", content=endless(), headers=FORM), 411)


def test_slow_uploads_and_translations_time_out():
    with served(seconds=0.3) as server:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as slow:
            kind = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x"
            slow.sendall(b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\n" + kind)
            server.net.may_run.clear()
            running = Upload(server, png())
            until(server.net.started.is_set)
            queued = Upload(server, png(size=(8, 8)))
            _check_error(running.answer(), 504)
            _check_error(queued.answer(), 504)
            slow.settimeout(20)
            assert b" 504 " in slow.recv(100)
        server.net.may_run.set()
        assert server.translate(png()).status_code == 200
        assert server.net.batches == [1, 1]  # the cancelled one was skipped


def test_a_full_queue_rejects_with_a_time_to_retry():
    with served(waiting=2) as server:
        server.net.may_run.clear()
        inside = [Upload(server, png(seed=seed)) for seed in range(2)]
        server.wait_for_requests(2)
        for _ in range(5):
            answer = server.translate(png())
            _check_error(answer, 503)
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.client.get("/healthz").json()["waiting"] == 2
        server.net.may_run.set()
        assert [upload.answer().status_code for upload in inside] == [200, 200]
        assert server.translate(png()).status_code == 200


def test_translates_queued_pictures_one_by_one_even_if_some_fail():
    with served() as server:
        server.net.may_run.clear()
        first = Upload(server, png(size=(8, 8)))
        until(server.net.started.is_set)
        pictures = [png(seed=seed) for seed in range(3)]
        uploads = [Upload(server, data) for data in (*pictures, png(value=255), png()[:200])]
        reverse = Upload(server, png(seed=9), {"direction": "b2a"})
        server.wait_for_requests(7)
        server.net.may_run.set()
        results = [upload.answer() for upload in uploads]
        assert [upload.answer().status_code for upload in (first, reverse)] == [200, 200]
        assert server.net.batches == [1] * 6
        for data, result in zip(pictures, results):
            pixels = _pixels(base64.b64decode(result.json()["picture"]))
            np.testing.assert_array_equal(pixels, 255 - _pixels(data))
        assert "burns" not in _check_error(results[3], 500)
        _check_error(results[4], 422)


def test_a_disconnected_client_leaves_the_queue():
    with served() as server:
        server.net.may_run.clear()
        first = Upload(server, png())
        until(server.net.started.is_set)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/api/translate",
                files={"picture": ("a.png", png())},
                timeout=0.3,
                trust_env=False,
                verify=False,
            )
        server.wait_for_requests(1)
        server.net.may_run.set()
        assert first.answer().status_code == 200
        assert server.net.batches == [1]


def test_a_tiled_translation_stops_after_a_timeout():
    with served(seconds=1.0, tile=32) as server:
        server.net.may_run.clear()
        _check_error(server.translate(png(size=(200, 200))), 504)
        server.net.may_run.set()
        assert server.translate(png(), preview="true").status_code == 200
        assert len(server.net.batches) == 2  # one tile of many, and the next picture


def test_shutdown_finishes_pending_requests():
    with served() as server:
        server.net.may_run.clear()
        uploads = [Upload(server, png(seed=seed)) for seed in range(2)]
        server.wait_for_requests(2)
        server.stop()
        server.net.may_run.set()
        assert [upload.answer().status_code for upload in uploads] == [200, 200]


def test_only_the_api_requires_the_token():
    token = "correct-horse-battery"
    with served(token=token) as server:
        for path in ("/", "/openapi.json", "/healthz"):
            assert server.client.get(path).status_code == 200
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token}, {"Authorization": "Bearer é"}):
            headers = [(name.encode(), value.encode()) for name, value in sent.items()]
            answer = server.client.get("/api/about", headers=headers)
            assert token not in _check_error(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        _check_error(server.translate(bytes(10**6)), 401)
        right = {"Authorization": f"Bearer {token}", "Host": "gpu.example.org"}
        assert server.client.get("/api/about", headers=right).status_code == 200


def test_rejects_requests_of_other_sites_pages(server: Served):
    for host in ("evil.example", "["):
        _check_error(server.client.get("/api/about", headers={"Host": host}), 400)
    files = {"picture": ("a.png", png())}
    for origin in ("http://evil.example", "http://["):
        _check_error(server.client.post("/api/translate", files=files, headers={"Origin": origin}), 403)
    own = {"Origin": server.url, "Host": server.url.removeprefix("http://")}
    assert server.client.post("/api/translate", files=files, headers=own).status_code == 200


def test_the_page_loads_nothing_from_elsewhere(server: Served):
    schema = server.client.get("/openapi.json").json()
    assert set(schema["paths"]) == {"/healthz", "/api/about", "/api/translate"}
    answer = server.client.get("/")
    rules = answer.headers["content-security-policy"]
    assert rules.startswith("default-src 'none'")
    assert "unsafe" not in rules
    nonce = re.findall(r"'nonce-([^']+)'", rules)[0]
    assert answer.text.count(f'nonce="{nonce}"') == 2, "of the style and of the script"
    assert nonce not in server.client.get("/").text, "a new one each time"
    assert not re.findall(r'(?:src|href)="(?!data:,|#|/)|url\(|@import', answer.text)
    _check_error(server.client.get("/docs"), 404)
    _check_error(server.client.get("/nothing/here"), 404)
    _check_error(server.client.get("/api/translate"), 405)
