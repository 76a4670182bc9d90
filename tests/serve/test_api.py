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
from velogan.serve.pictures import name_of
from velogan.translate.files import translate
from velogan.translate.model import Translator

from .conftest import Negative, Served, Upload, png, served, until


def _pixels(data: bytes) -> np.ndarray:
    return decode(data).pixels


def _refused(response: httpx.Response, status: int) -> str:
    """Return what a refusal says, which shows nothing of the code."""
    assert response.status_code == status, response.text
    assert "Traceback" not in response.text
    assert "site-packages" not in response.text
    return response.text


def test_a_picture_comes_back_translated(server: Served):
    data = png(size=(21, 13))
    found = server.translate(data, "café one.png", direction="b2a", preview="true").json()
    assert (found["name"], found["direction"]) == ("café one.png", "b2a")
    assert (found["width"], found["height"], found["format"], found["kept_format"]) == (13, 21, "png", True)
    np.testing.assert_array_equal(_pixels(base64.b64decode(found["picture"])), 255 - _pixels(data))
    for side in ("before", "after"):
        head, _, body = found["preview"][side].partition(",")
        assert head == "data:image/jpeg;base64"
        assert _pixels(base64.b64decode(body)).shape == (21, 13, 3)


def test_a_map_of_uncertainty_comes_with_it_where_it_is_asked_for_and_can_be_had():
    flat = png(size=(16, 24), value=90)
    with served(with_uncertainty=("a2b",)) as server:
        assert server.client.get("/api/about").json()["uncertainty"] == ["a2b"]
        found = server.translate(flat, direction="a2b", uncertainty="true", preview="true").json()
        shown = _pixels(base64.b64decode(found["uncertainty"]["map"]))[..., 0]
        np.testing.assert_array_equal(shown, np.repeat([[255, 0]], 16, axis=0).repeat(12, axis=1))
        assert found["uncertainty"]["mean"] == 0.5
        assert found["uncertainty"]["highest"] == {"x": 0, "y": 0, "width": 2, "height": 2, "mean": 1.0}
        head, _, body = found["preview"]["uncertainty"].partition(",")
        assert head == "data:image/png;base64"
        assert decode(base64.b64decode(body)).alpha is not None
        assert server.translate(flat, direction="a2b").json()["uncertainty"] is None
        assert "this run has none for b2a" in _refused(server.translate(flat, direction="b2a", uncertainty="true"), 400)


def test_a_picture_in_tiles_comes_without_a_map_of_uncertainty_and_says_why():
    with served(with_uncertainty=("a2b",), tile=32) as server:
        found = server.translate(png(size=(48, 48), value=90), uncertainty="true").json()
    assert found["picture"]
    assert found["uncertainty"] is None
    assert "needs the complete picture" in found["no_uncertainty"]


def _files() -> dict[str, bytes]:
    """Pictures of which something is to be kept, or cannot be."""
    colour = np.random.default_rng(1).integers(0, 256, (24, 16, 3), np.uint8)
    image = Image.fromarray(colour)
    made: dict[str, bytes] = {}

    def save(name: str, what: Image.Image = image, **how: Any) -> None:
        file = io.BytesIO()
        what.save(file, **{"format": Path(name).suffix[1:].replace("jpg", "jpeg"), **how})
        made[name] = file.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.jpg", exif=exif, icc_profile=b"p" * 200)
    save("clear.webp", Image.fromarray(np.dstack([colour, colour[..., 0]])), lossless=True)
    save("animated.gif", image.convert("P"))
    made["deep.png"] = encode(".png", Picture(colour.astype(np.uint16) * 257))
    made["grey.tif"] = encode(".tiff", Picture(colour[..., :1]))
    made["array.npy"] = encode(".npy", Picture(colour))
    return made


@pytest.mark.parametrize("name", _files())
def test_what_a_file_is_stays_as_translate_keeps_it(name: str, server: Served, tmp_path: Path):
    data = _files()[name]
    stored = name if not name.endswith(".gif") else f"{name}.png"  # translate goes by names, this by bytes
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / stored).write_bytes(data)
    model = Translator(Negative(), multiple=4, device=torch.device("cpu"))
    assert translate(model, tmp_path / "in", tmp_path / "out").translated == 1
    (expected,) = (tmp_path / "out").iterdir()
    response = server.translate(data, name, answer="picture", preview="true")
    assert response.content == expected.read_bytes()
    assert response.headers["content-disposition"].endswith("animated.png" if name.endswith("gif") else name)
    told = server.translate(data, name, preview="true").json()
    assert told["kept_format"] is not name.endswith("gif")
    shown = decode(base64.b64decode(told["preview"]["after"].partition(",")[2]))
    assert shown.pixels.shape[:2] == (told["height"], told["width"])
    assert shown.pixels.dtype == np.uint8


def test_only_what_the_run_has_is_offered():
    with served(ways=("b2a",)) as server:
        assert server.client.get("/api/about").json()["directions"] == {"b2a": "night → day"}
        assert server.translate(png()).json()["direction"] == "b2a"
        assert "b2a alone" in _refused(server.translate(png(), direction="a2b"), 400)


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
def test_a_hostile_upload_is_refused_and_the_server_lives(name: str, data: bytes, status: int, server: Served):
    _refused(server.translate(data, name), status)
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
def test_a_name_comes_back_without_folders_and_odd_characters(sent: str, returned: str):
    assert name_of(sent, ".png") == returned


FORM = {"content-type": "multipart/form-data; boundary=x"}


def _form(name: str, data: bytes) -> bytes:
    """A form as its bytes, with a name as it stands."""
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
def test_a_form_that_is_none_is_refused(sent: dict[str, Any], server: Served):
    response = server.client.post("/api/translate", **sent)
    assert response.status_code in (400, 422)
    _refused(response, response.status_code)
    assert not server.net.batches


def test_bytes_without_a_length_are_not_read(server: Served):
    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(1000)

    _refused(server.client.post("/api/translate", content=endless(), headers=FORM), 411)


def test_a_slow_upload_and_a_slow_translation_end_with_the_time():
    with served(seconds=0.3) as server:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as slow:
            kind = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x"
            slow.sendall(b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\n" + kind)
            server.net.free.clear()
            began = Upload(server, png())
            until(server.net.began.is_set)
            waits = Upload(server, png(size=(8, 8)))
            _refused(began.answer(), 504)
            _refused(waits.answer(), 504)
            slow.settimeout(20)
            assert b" 504 " in slow.recv(100)
        server.net.free.set()
        assert server.translate(png()).status_code == 200
        assert server.net.batches == [1, 1]  # what nobody waited for any more was left out


def test_a_full_line_refuses_and_says_when_to_come_again():
    with served(waiting=2) as server:
        server.net.free.clear()
        inside = [Upload(server, png(seed=seed)) for seed in range(2)]
        server.waits(2)
        for _ in range(5):
            answer = server.translate(png())
            _refused(answer, 503)
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.client.get("/healthz").json()["waiting"] == 2
        server.net.free.set()
        assert [upload.answer().status_code for upload in inside] == [200, 200]
        assert server.translate(png()).status_code == 200


def test_waiting_pictures_are_translated_one_after_another_whatever_befalls_another():
    with served() as server:
        server.net.free.clear()
        first = Upload(server, png(size=(8, 8)))
        until(server.net.began.is_set)
        alike = [png(seed=seed) for seed in range(3)]
        uploads = [Upload(server, data) for data in (*alike, png(value=255), png()[:200])]
        back = Upload(server, png(seed=9), {"direction": "b2a"})
        server.waits(7)
        server.net.free.set()
        results = [upload.answer() for upload in uploads]
        assert server.net.batches == [1] * 6
        for data, result in zip(alike, results):
            pixels = _pixels(base64.b64decode(result.json()["picture"]))
            np.testing.assert_array_equal(pixels, 255 - _pixels(data))
        assert "burns" not in _refused(results[3], 500)
        _refused(results[4], 422)
        assert [one.answer().status_code for one in (first, back)] == [200, 200]


def test_who_goes_away_leaves_the_line():
    with served() as server:
        server.net.free.clear()
        first = Upload(server, png())
        until(server.net.began.is_set)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/api/translate",
                files={"picture": ("a.png", png())},
                timeout=0.3,
                trust_env=False,
                verify=False,
            )
        server.waits(1)
        server.net.free.set()
        assert first.answer().status_code == 200
        assert server.net.batches == [1]


def test_a_translation_in_tiles_ends_when_nobody_waits_for_it():
    with served(seconds=1.0, tile=32) as server:
        server.net.free.clear()
        _refused(server.translate(png(size=(200, 200))), 504)
        server.net.free.set()
        assert server.translate(png(), preview="true").status_code == 200
        assert len(server.net.batches) == 2  # one tile of many, and the next picture


def test_the_end_answers_what_has_begun():
    with served() as server:
        server.net.free.clear()
        uploads = [Upload(server, png(seed=seed)) for seed in range(2)]
        server.waits(2)
        server.stop()
        server.net.free.set()
        assert [upload.answer().status_code for upload in uploads] == [200, 200]


def test_a_token_is_asked_for_by_the_api_alone():
    token = "correct-horse-battery"
    with served(token=token) as server:
        for path in ("/", "/openapi.json", "/healthz"):
            assert server.client.get(path).status_code == 200
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token}, {"Authorization": "Bearer é"}):
            headers = [(name.encode(), value.encode()) for name, value in given.items()]
            answer = server.client.get("/api/about", headers=headers)
            assert token not in _refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        _refused(server.translate(bytes(10**6)), 401)
        right = {"Authorization": f"Bearer {token}", "Host": "gpu.example.org"}
        assert server.client.get("/api/about", headers=right).status_code == 200


def test_pages_of_other_sites_cannot_use_a_server_of_this_machine(server: Served):
    for host in ("evil.example", "["):
        _refused(server.client.get("/api/about", headers={"Host": host}), 400)
    files = {"picture": ("a.png", png())}
    for origin in ("http://evil.example", "http://["):
        _refused(server.client.post("/api/translate", files=files, headers={"Origin": origin}), 403)
    own = {"Origin": server.url, "Host": server.url.removeprefix("http://")}
    assert server.client.post("/api/translate", files=files, headers=own).status_code == 200


def test_other_formats_than_are_written_become_png_and_are_not_kept(server: Served):
    for form in ("AVIF", "JPEG2000", "GIF"):
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (9, 90, 200)).save(file, form)
        answer = server.translate(file.getvalue()).json()
        assert (answer["format"], answer["kept_format"]) == ("png", False), form


def test_the_page_needs_nobody_else(server: Served):
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
    _refused(server.client.get("/docs"), 404)
    _refused(server.client.get("/nothing/here"), 404)
    _refused(server.client.get("/api/translate"), 405)
