"""Translating the pictures of a Parquet file into another: one column is replaced, all others are copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from velogan.data.pictures.images import SUFFIXES, suffix_of
from velogan.scale.work import Done, Options, Packed, within
from velogan.translate.files import translate_jobs
from velogan.translate.model import Translator

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 64
"""Rows that are read and written at a time."""

PATHS = ("image", "path", "file", "filename", "file_name", "image_path")
"""Columns of text that are taken for paths of pictures."""


def translate_table(model: Translator, source: Path, target: Path, *, name: str, options: Options) -> Done:
    """Translate one column of the Parquet file `source`, called `name`, into the file `target`, row by row.

    The column holds bytes, Hugging Face's `{bytes, path}`, or paths, which are relative to the folder of `source`; the
    translations are bytes. A picture that fails is null and named. Raises `ValueError` where there is no such column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = Done()
    try:
        with pq.ParquetFile(source, pre_buffer=False) as file:
            schema = file.schema_arrow
            field = schema.field(_column(schema, options.column))
            index = schema.get_field_index(field.name)
            made = field.with_type(pa.binary()) if _is_text(field.type) else field
            with pq.ParquetWriter(target, schema.set(index, made.with_nullable(True))) as out:
                row = 0
                for batch in file.iter_batches(batch_size=ROWS):
                    cells = batch.column(index).to_pylist()
                    found = _translate(model, cells, row, source, target, name=name, options=options, done=done)
                    column = pa.array(found, type=made.type)
                    columns = [column if one == index else batch.column(one) for one in range(batch.num_columns)]
                    out.write_batch(pa.RecordBatch.from_arrays(columns, schema=out.schema))
                    row += batch.num_rows
    except pa.ArrowException as error:
        raise ValueError(f"damaged table: {str(error).splitlines()[0]}") from error
    return done


def _translate(
    model: Translator,
    cells: list[Any],
    first: int,
    source: Path,
    target: Path,
    *,
    name: str,
    options: Options,
    done: Done,
) -> list[Any]:
    """The new cells; None for each that failed."""
    results: dict[int, tuple[str, bytes]] = {}
    jobs: list[Packed] = []
    for number, cell in enumerate(cells):
        called = within(name, f"row {first + number}")
        data = _picture(cell, source.parent)
        if data is None:
            done.failed.append((called, "there is no picture in this row"))
        else:
            suffix = options.suffix or _suffix(data)
            jobs.append(Packed(called, data, Path(f"{number}{suffix}"), target.parent, number, results))
    done.add(translate_jobs(model, jobs, tile=options.tile, threads=options.threads))
    if any(isinstance(cell, dict) for cell in cells):
        return [{**cell, "bytes": results[n][1]} if n in results else None for n, cell in enumerate(cells)]
    return [results[number][1] if number in results else None for number in range(len(cells))]


def _picture(cell: Any, folder: Path) -> bytes | Path | None:
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, str):
        return folder / cell
    return cell or None


def _suffix(data: bytes | Path) -> str:
    if isinstance(data, bytes):
        return suffix_of(data)
    return data.suffix if data.suffix.lower() in SUFFIXES else ".png"


def _column(schema: pa.Schema, asked: str | None) -> str:
    """The column that holds pictures. `ValueError` where it is not there, or not the only one."""
    kinds = {
        "bytes": [field.name for field in schema if _is_bytes(field.type) or _has_bytes(field.type)],
        "paths": [field.name for field in schema if _is_text(field.type)],
    }
    names = ", ".join(schema.names)
    if asked is not None:
        if asked not in kinds["bytes"] + kinds["paths"]:
            raise ValueError(f"--column {asked}: no column of bytes or paths has this name; there are {names}")
        return asked
    found = kinds["bytes"] or [one for one in kinds["paths"] if one in PATHS]
    if len(found) != 1:
        raise ValueError(f"which column holds the pictures? Say --column NAME; there are {names}")
    return found[0]


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_binary(kind) or types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind)


def _has_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_struct(kind) and any(one.name == "bytes" and _is_bytes(one.type) for one in kind.fields)
