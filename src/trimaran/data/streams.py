"""Plain, gzip and zstd files as one kind of byte stream."""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from trimaran.spec.mistake import import_optional

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_CHUNK = 2**17


class Stream:
    """`lines` is read from; `done()` is how many bytes of the file were read."""

    def __init__(self, path: Path) -> None:
        zstandard = import_optional("zstandard", f"Reading {path}", "data") if path.suffix == ".zst" else None
        self.file = path.open("rb")
        self.plain = path.suffix not in (".gz", ".zst")
        self.lines: BinaryIO = self.file
        if path.suffix == ".gz":
            self.lines = cast(BinaryIO, gzip.GzipFile(fileobj=self.file))
        elif path.suffix == ".zst":
            self.lines = io.BufferedReader(_Zstandard(self.file, zstandard), _CHUNK)

    def skip(self, offset: int) -> None:
        if self.plain:
            self.file.seek(offset)
            return
        while offset > 0:
            offset -= len(self.lines.read(min(offset, 2**20))) or offset

    def done(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.lines.close()
        self.file.close()


class _Zstandard(io.RawIOBase):
    """All frames of a file; a truncated frame raises EOFError, which the package's own reader does not."""

    def __init__(self, file: BinaryIO, package: Any) -> None:
        self.file, self.decompressor = file, package.ZstdDecompressor()
        self.error: type[Exception] = package.ZstdError
        self.frame: Any = None
        self.ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            chunk = self.frame.unused_data if self.frame is not None and self.frame.eof else b""
            chunk = chunk or self.file.read(_CHUNK)
            if not chunk:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError
                return 0
            if self.frame is None or self.frame.eof:
                self.frame = self.decompressor.decompressobj()
            try:
                self.ready = self.frame.decompress(chunk)
            except self.error as error:
                raise zlib.error(str(error)) from None
        count = min(len(buffer), len(self.ready))
        buffer[:count] = self.ready[:count]
        self.ready = self.ready[count:]
        return count
