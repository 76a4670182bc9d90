"""Training from shards: what names them, what lies in them, in which order it comes, and what goes wrong."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from webdataset.compat import WebDataset
from webdataset.writer import ShardWriter

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, encode
from velogan.data.sets import indexing, shards
from velogan.data.sets import loader as room
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.check import check
from velogan.data.sets.loader import PairLoader
from velogan.data.sets.order import RUN, BoundedShuffle
from velogan.data.sets.pack import pack
from velogan.data.sets.pair import open_data
from velogan.data.sets.shards import find_shards
from velogan.data.sets.sources import find_sources

KIB = 2**10


def config(*path: Path | str, **fields: object) -> DataConfig:
    return DataConfig.model_validate({"path": [str(one) for one in path], "crop_size": 16, "load_size": 20, **fields})


def png(seed: int, *, dtype: str = "uint8", channels: int = 3, side: int = 24) -> bytes:
    random = np.random.default_rng(seed)
    return encode(".png", Picture(random.integers(0, np.iinfo(dtype).max, (side, side, channels), dtype)))


def tar(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return path


def other(folder: Path) -> Path:
    """A shard for domain B."""
    return tar(folder / "other.tar", {"0.png": png(9)})


def train(asked: DataConfig) -> tuple[Domain, Domain, list[str]]:
    said: list[str] = []
    data = open_data(asked, task=lambda name: lambda done, total: None, say=said.append)
    return data.a, data.b, said


def batches(asked: DataConfig, *, start: int = 0, count: int, rank: int = 0, ranks: int = 1) -> list[np.ndarray]:
    a, b, _ = train(asked)
    made = PairLoader(a, b, asked, seed=3, device="cpu", rank=rank, ranks=ranks).batches(start)
    found = [next(made) for _ in range(count)]
    made.close()
    return [np.concatenate([batch["A"], batch["B"]]) for batch in found]


@pytest.fixture
def both(make_folder: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A set in folders, and the same packed in shards of a few pictures, with the tests beside."""
    for letter, count in (("A", 23), ("B", 30)):
        folder = make_folder(f"set/train{letter}", count=count - 2, seed=ord(letter))
        make_folder(f"set/train{letter}/deep", count=2, shape=(30, 50), seed=count)
        made = pack(folder, tmp_path / f"shards/train{letter}", most_bytes=40 * KIB)
        assert len(made) > 3
        assert sum(count for _, count in made) == count
    return tmp_path / "set", tmp_path / "shards"


def test_shards_are_trained_on_like_the_folders_they_were_made_of(both: tuple[Path, Path]) -> None:
    folders, packed = (config(path, flip_vertical=True) for path in both)
    for one, other in zip(batches(folders, count=40), batches(packed, count=40), strict=True):
        assert np.array_equal(one, other)
    (one, _, _), (other, _, _) = train(folders), train(packed)
    assert [name.partition("/")[2] for name in other.names] == list(one.names)
    held = [find_sources(asked).a.validation for asked in (folders, packed)]
    assert held[0] is not None
    assert held[1] is not None
    assert list(held[0].own_names) == list(held[1].own_names)
    one, other = (open_domain(found, asked, test=True) for found, asked in ((held[0], folders), (held[1], packed)))
    assert np.array_equal(one.image(1), other.image(1))


def test_nothing_of_them_is_decoded_again_or_kept(both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(both[1], validation=0)
    first = train(asked)[0]
    monkeypatch.setattr(indexing, "decode", None)
    again = train(config(both[1], validation=0, load_size=30))[0]  # an index does not depend on settings
    assert again.names[:] == first.names[:]
    assert again.digest != first.digest
    assert train(asked)[0].digest == first.digest


def test_a_bounded_order_takes_every_picture_once_an_epoch_and_can_begin_anywhere(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SHUFFLED", 10)
    asked = config(both[1], validation=0, flip=False, crop_size=20)
    a, b, _ = train(asked)
    loader = PairLoader(a, b, asked, seed=3, device="cpu")
    planned = [loader.plan(place) for place in range(60)]
    for turn in (planned[:30], planned[30:]):
        assert sorted(int(plan.B[0, 0]) for plan in turn) == list(range(30))
    assert sorted(int(plan.A[0, 0]) for plan in planned[23:46]) == list(range(23))
    orders = [[int(plan.B[0, 0]) for plan in turn] for turn in (planned[:30], planned[30:])]
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])
    whole = batches(asked, count=40)
    for one, other in zip(whole[17:], batches(asked, start=17, count=23), strict=True):
        assert np.array_equal(one, other)


def test_two_ranks_take_disjoint_parts_of_one_order(both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SHUFFLED", 10)
    asked = config(both[1])
    ranks = [batches(asked, count=6, rank=rank, ranks=2) for rank in (0, 1)]
    alone = batches(asked, count=12)
    for place, one in enumerate(alone):
        assert np.array_equal(one, ranks[place % 2][place // 2])


@pytest.mark.parametrize(("count", "buffer"), [(1, 5), (RUN - 1, 10), (5 * RUN + 3, 2 * RUN), (1000, 10**6)])
def test_a_bounded_shuffle_is_a_permutation_that_stays_near(count: int, buffer: int) -> None:
    order = BoundedShuffle(count, buffer, (1, 2))
    turns = [[order[turn * count + place] for place in range(count)] for turn in range(2)]
    for turn in turns:
        assert sorted(turn) == list(range(count))
        for first in range(0, count, buffer):
            runs = {number // RUN for number in turn[first : first + buffer]}
            assert len(runs) <= min(buffer, count) / RUN + 3
    assert count == 1 or turns[0] != turns[1]
    assert BoundedShuffle(count, buffer, (1, 2))[count - 1] == turns[0][-1]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{b,a}-{1..2}.tar", ["b-1.tar", "b-2.tar", "a-1.tar", "a-2.tar"]),
        ("a-1.tar::b-2.tar", ["a-1.tar", "b-2.tar"]),
        ("a-0*.tar", ["a-08.tar", "a-09.tar"]),
    ],
)
def test_shards_are_named_as_webdataset_has_it(
    given: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-08", "a-09", "a-10", "a-11", "a-1", "a-2", "b-1", "b-2"):
        tar(tmp_path / f"{name}.tar", {})
    assert [shard.label for shard in find_shards(given)] == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a-{0..2}.tar", r"a-1.tar cannot be read \(No such file.*bring this shard back"),
        ("b-*.tar", "no file matches b-"),
        ("a-0.tar::a-0.tar", "names a-0.tar twice"),
        ("a-0.tar.gz", "compressed.*unpack it"),
        ("s3://bucket/a.tar", "not from s3:.*https://"),
        ("pipe:cat a.tar", "not from pipe:"),
        ("a-{0..99999999}.tar", "more than 1,000,000 shards"),
        ("cut.tar", "cut.tar: damaged shard: .*; bring a whole one"),
        ("broken.tar", "broken.tar: damaged shard: no member begins at byte"),
        ("text.tar", "text.tar holds no picture"),
        ("bad.tar", r"bad.tar/0.png cannot be read \(not a picture"),
    ],
)
def test_what_names_no_shards_is_told(
    given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = tar(tmp_path / "a-0.tar", {f"{number}.png": png(number) for number in range(3)}).read_bytes()
    (tmp_path / "cut.tar").write_bytes(good[: len(good) // 2 + KIB])
    at = good.index(b"1.png")
    (tmp_path / "broken.tar").write_bytes(good[:at] + b"?" * 512 + good[at + 512 :])
    tar(tmp_path / "text.tar", {"a.txt": b"no picture"})
    tar(tmp_path / "bad.tar", {"0.png": b"no picture"})
    with pytest.raises(ValueError, match=message):
        train(config(given, "a-0.tar"))


def test_shards_are_those_of_the_package_webdataset_both_ways(both: tuple[Path, Path], tmp_path: Path) -> None:
    ours = sorted(str(path) for path in (both[1] / "trainA").iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves shards open
        read = {sample["__key__"]: sample["png"] for sample in WebDataset(ours, shardshuffle=False)}
        gc.collect()
    folder = both[0] / "trainA"
    files = {str(path.relative_to(folder))[: -len(".png")]: path.read_bytes() for path in folder.rglob("*.png")}
    assert read == files

    (tmp_path / "theirs").mkdir()
    with ShardWriter(str(tmp_path / "theirs/%03d.tar"), maxcount=10, verbose=0) as writer:
        for key, data in sorted(files.items()):
            writer.write({"__key__": key, "png": data, "json": {"name": key}, "cls": 3})
    ours_b = both[1] / "trainB"
    theirs, same = (train(config(at, ours_b, validation=0))[0] for at in (tmp_path / "theirs", both[1] / "trainA"))
    assert len(list((tmp_path / "theirs").iterdir())) == 3
    assert len(theirs) == len(same) == len(files)
    for one in range(len(files)):
        assert np.array_equal(theirs.image(one), same.image(one))


def test_unquoted_braces_are_told() -> None:
    with pytest.raises(ValueError, match="put a set of shards in quotes"):
        config("a-0.tar", "a-1.tar", "b-0.tar")


def test_damaged_members_are_left_out_and_named(tmp_path: Path) -> None:
    files = {f"{number}.png": png(number) for number in range(4)} | {"bad.png": b"\x89PNG\r\n\x1a\n?", "a.json": b"{}"}
    one = tar(tmp_path / "one.tar", files)
    a, _, said = train(config(one, other(tmp_path)))
    assert a.names[:] == [f"one.tar/{number}.png" for number in range(4)]
    assert [line for line in said if "left out 1 of 5" in line and "one.tar/bad.png (damaged PNG" in line]


def test_damaged_members_are_named_where_others_are_held_out(tmp_path: Path) -> None:
    good = {f"{number}.png": png(number) for number in range(24)}
    paths = [tar(tmp_path / f"{letter}.tar", {**good, "bad.png": b"no picture"}) for letter in "ab"]
    side = find_sources(config(*paths, validation=2)).a
    assert side.validation is not None
    assert len(side.validation.names) == 2
    assert [name for name, _ in open_domain(side.train, config(*paths), test=False).skipped] == ["a.tar/bad.png"]


def test_a_member_of_each_sample_is_chosen(tmp_path: Path) -> None:
    files = {f"{number}.{kind}": png(number) for number in range(3) for kind in ("png", "mask.png")}
    one = tar(tmp_path / "one.tar", files)
    a, _, said = train(config(one, other(tmp_path)))
    assert len(a) == 6
    assert [line for line in said if "hold several pictures, like 0.png and 0.mask.png" in line]
    a, _, said = train(config(one, other(tmp_path), member="jpg;png"))
    assert (a.names[:], said) == ([f"one.tar/{number}.png" for number in range(3)], [])
    with pytest.raises(ValueError, match=r"data.member='webp' fits no picture of .*: there are mask.png, png"):
        train(config(one, other(tmp_path), member="webp"))


def test_pages_are_refused(tmp_path: Path) -> None:
    one = tar(tmp_path / "one.tar", {"0.png": png(0)})
    with pytest.raises(ValueError, match=r"data.pages=channels is for folders of TIFF files, and .*one.tar names"):
        train(config(one, other(tmp_path), pages="channels"))


def test_pictures_of_several_formats_become_one_as_in_folders(tmp_path: Path) -> None:
    files = {"0.png": png(0), "1.png": png(1, dtype="uint16", channels=1), "2.png": png(2, channels=1)}
    one = tar(tmp_path / "one.tar", files)
    (tmp_path / "folder").mkdir()
    for name, data in files.items():
        (tmp_path / "folder" / name).write_bytes(data)
    for channels in (None, 1):
        packed, loose = (
            train(config(path, other(tmp_path), channels_a=channels))[0] for path in (one, tmp_path / "folder")
        )
        assert packed.format == loose.format
        assert packed.shapes == loose.shapes
        assert all(np.array_equal(packed.image(number), loose.image(number)) for number in range(3))


def test_a_shard_that_changes_is_told_and_looked_through_again(tmp_path: Path) -> None:
    one = tar(tmp_path / "one.tar", {f"{number}.png": png(number) for number in range(4)})
    a = train(config(one, other(tmp_path)))[0]
    data = one.read_bytes()
    one.write_bytes(data[:600] + b"?" + data[601:])
    with pytest.raises(OSError, match="changed since it was looked through: start the command again") as raised:
        a.image(0)
    assert raised.value.filename == str(one)
    one.write_bytes(data[:KIB])
    with pytest.raises(OSError, match="changed since"):
        a.image(3)
    one.unlink()
    with pytest.raises(FileNotFoundError):
        a.image(0)
    tar(one, {f"{number}.png": png(number + 1) for number in range(4)})
    again = train(config(one, other(tmp_path)))[0]
    assert again.digest != a.digest
    assert again.image(0).shape == (20, 20, 3)


def test_another_shard_of_equal_size_and_time_is_looked_through(tmp_path: Path) -> None:
    files = {f"{number}.png": png(number) for number in range(4)}
    one = tar(tmp_path / "one.tar", files)
    os.utime(one, (1e9, 1e9))
    train(config(one, other(tmp_path)))
    other_order = {name: files[f"{3 - number}.png"] for number, name in enumerate(files)}
    os.utime(tar(one, other_order), (1e9, 1e9))
    a = train(config(one, other(tmp_path)))[0]
    assert [a.image(number).shape for number in range(4)] == [(20, 20, 3)] * 4


def test_checking_looks_into_shards(tmp_path: Path) -> None:
    one = tar(tmp_path / "one.tar", {"0.png": png(0), "1.png": png(0), "2.png": png(2)})
    found = check(DataConfig(path=(str(one), str(other(tmp_path)))))
    assert found["folders"]["trainA"]["pictures"] == 3
    assert found["folders"]["trainA"]["duplicates"] == [["one.tar/0.png", "one.tar/1.png"]]


class _Ranges(SimpleHTTPRequestHandler):
    """As web servers do, it gives parts of files; every fifth request fails."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.asked % 5 == 2:
            return self.send_error(503)
        span = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if span is None or "plain" in self.path or not path.is_file():
            return super().do_GET()
        data = path.read_bytes()
        first, last = map(int, span.removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[first : last + 1])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Ranges, directory=str(tmp_path))) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_shards_at_web_addresses(both: tuple[Path, Path], server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_PAUSES", (0, 0, 0))
    monkeypatch.setattr(room, "SHUFFLED", 10)
    count = len([*(both[1] / "trainA").iterdir()])
    web = config(*(f"{server}/shards/train{x}/train{x}-{{000000..{count - 1:06d}}}.tar" for x in "AB"))
    local = config(both[1] / "trainA", both[1] / f"trainB/trainB-{{000000..{count - 1:06d}}}.tar")
    for one, other in zip(batches(local, count=3), batches(web, count=3), strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(ValueError, match=r"nowhere.tar cannot be read .*404"):
        train(config(f"{server}/nowhere.tar", both[0] / "trainB"))
    tar(both[1] / "plain.tar", {"0.png": png(0)})
    with pytest.raises(ValueError, match=r"plain.tar cannot be read .*does not give parts of files"):
        train(config(f"{server}/shards/plain.tar", both[0] / "trainB"))


def test_packing_overwrites_nothing_and_leaves_nothing_half(
    make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("in", count=3)
    (folder / "001.png").unlink()
    (folder / "001.png").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        pack(folder, tmp_path / "out", most_bytes=KIB)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    (folder / "001.png").unlink()
    assert pack(folder, tmp_path / "out", most_bytes=KIB) == [("out-000000.tar", 1), ("out-000001.tar", 1)]
    with tarfile.open(tmp_path / "out/out-000000.tar") as made:
        file = made.extractfile("000.png")
        assert file is not None
        assert file.read() == (folder / "000.png").read_bytes()
    with pytest.raises(ValueError, match="out exists, and nothing is overwritten"):
        pack(folder, tmp_path / "out", most_bytes=KIB)
    with pytest.raises(ValueError, match="empty holds no pictures"):
        pack(make_folder("empty", count=0), tmp_path / "new", most_bytes=KIB)
