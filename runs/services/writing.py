"""Files of rows: CSV, JSONL and Parquet, written a chunk at a time and put in place whole."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runs.domain.render import guarded

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: ``kind`` is text, int, float, bool or json (any value; text in tables)."""

    name: str
    kind: str


@dataclass(frozen=True)
class Written:
    """What was written."""

    rows: int
    bytes: int
    sha256: str


def write_file(
    path: Path, *, columns: Sequence[Column], chunks: Iterable[list[Row]], format: str
) -> Written:
    """Write the rows into ``path``, readable by its owner alone, and return what was written.

    It is written aside and renamed once it is on the disk, so that ``path`` is there whole or
    not at all, whatever ends the process meanwhile.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            hashing = _Hashing(file)
            rows = 0
            with FORMATS[format](hashing, columns) as write:
                for chunk in chunks:
                    write(chunk)
                    rows += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
    return Written(rows=rows, bytes=hashing.size, sha256=hashing.digest.hexdigest())


class _Hashing(io.RawIOBase):
    """Passes bytes on to ``file`` and keeps their number and sha256."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self.digest.update(taken)
        self.size += len(taken)
        return self._file.write(taken)


Write = Callable[[list[Row]], None]
Writer = Callable[[_Hashing, Sequence[Column]], AbstractContextManager[Write]]


def _plain(text: str) -> str:
    """Return text that UTF-8 can hold: half characters, which models do write, are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def _jsonl(file: _Hashing, columns: Sequence[Column]) -> Iterator[Write]:
    names = [column.name for column in columns]

    def write(rows: list[Row]) -> None:
        for row in rows:
            line = {name: row.get(name) for name in names}
            text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            try:
                data = text.encode()
            except UnicodeEncodeError:  # half a character: JSON's escapes hold it exactly
                data = json.dumps(line, allow_nan=False, separators=(",", ":")).encode()
            file.write(data + b"\n")

    yield write


@contextlib.contextmanager
def _csv(file: _Hashing, columns: Sequence[Column]) -> Iterator[Write]:
    def put(lines: Iterable[Iterable[Any]]) -> None:
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerows(lines)
        file.write(_plain(out.getvalue()).encode())

    put([[column.name for column in columns]])
    yield lambda rows: put(
        [_csv_cell(column, row.get(column.name)) for column in columns] for row in rows
    )


def _csv_cell(column: Column, value: Any) -> Any:
    if value is None:
        return ""
    if column.kind == "bool":
        return "true" if value else "false"
    if column.kind == "json":
        value = _json(value)
    return guarded(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def _parquet(file: _Hashing, columns: Sequence[Column]) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    kinds = {
        "text": pyarrow.string(),
        "json": pyarrow.string(),
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
    }
    schema = pyarrow.schema([(column.name, kinds[column.kind]) for column in columns])
    with parquet.ParquetWriter(file, schema) as writer:

        def write(rows: list[Row]) -> None:
            values = {
                column.name: [_parquet_value(column, row.get(column.name)) for row in rows]
                for column in columns
            }
            writer.write_table(pyarrow.table(values, schema=schema))

        yield write


def _parquet_value(column: Column, value: Any) -> Any:
    if value is None or column.kind in ("int", "float", "bool"):
        return value
    return _plain(_json(value) if column.kind == "json" else str(value))


FORMATS: Mapping[str, Writer] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
