"""Downloading the authors' data sets, from a server of the test."""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from velogan.cli import main
from velogan.data.config import DataConfig
from velogan.data.sets import download as module
from velogan.data.sets.download import download
from velogan.data.sets.sources import find_sources

GOOD = {f"maps/{part}/{number}.jpg": b"picture" for part in ("trainA", "trainB", "testA", "testB") for number in (1, 2)}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def packed(folder: Path, files: dict[str, bytes], *links: str) -> Path:
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        for name in links:
            link = ZipInfo(name)
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, "/etc/passwd")
    (folder / "served/maps.zip").write_bytes(file.getvalue())
    return folder / "served/maps.zip"


def test_a_set_is_downloaded_and_can_be_trained_on(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed(tmp_path, {**GOOD, "maps/notes.txt": b""})
    monkeypatch.setattr(module, "HOST", host)
    assert main(["data", "download", "maps", str(tmp_path / "maps")]) == 0
    assert "8 pictures" in capsys.readouterr().err
    sources = find_sources(DataConfig(path=(str(tmp_path / "maps"),)))
    assert sources.a.train.names == ("1.jpg", "2.jpg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps", "served"]
    assert main(["data", "download", "maps", str(tmp_path / "maps")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_skips_members_outside_of_the_folder(host: str, tmp_path: Path) -> None:
    bad = {"../out.jpg": b"", "/out.jpg": b"", "maps/trainA/../../out.jpg": b"", "maps/trainA/.hidden": b""}
    packed(tmp_path, {**GOOD, **bad}, "maps/trainA/link.jpg")
    assert download("maps", tmp_path / "maps", host=host) == 8
    assert sorted(path.name for path in (tmp_path / "maps/trainA").iterdir()) == ["1.jpg", "2.jpg"]
    assert not list(tmp_path.rglob("out.jpg"))


def test_a_failed_download_leaves_nothing(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(message: str, kind: type[Exception] = ValueError, host: str = host) -> None:
        with pytest.raises(kind, match=message):
            download("maps", tmp_path / "maps", host=host)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]

    fails(r"maps\.zip cannot be downloaded \(.*not found", OSError)
    fails(r"cannot be downloaded \(.*refused", OSError, host="http://127.0.0.1:9")
    packed(tmp_path, {"other/trainA/1.jpg": b""})
    fails("holds no maps/trainA and maps/trainB")
    file = packed(tmp_path, GOOD)
    file.write_bytes(file.read_bytes()[:-30])
    fails("is not a valid archive")
    packed(tmp_path, {**GOOD, "maps/trainA/bomb.jpg": bytes(10**6)})
    monkeypatch.setattr(module, "MAX_BYTES", 10**5)
    fails("would unpack to more than")
