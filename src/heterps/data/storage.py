"""Where data files are kept: on this machine, on S3, on HDFS, or wherever fsspec can reach.

    logs/a.parquet, file://      this machine
    s3://bucket/a.parquet        pyarrow's own file system: credentials from the environment or ~/.aws, as AWS's tools
    hdfs://node:8020/a.parquet   pyarrow's own, which needs Hadoop's libhdfs on the machine
    webhdfs://node:9870/...      fsspec's, over HTTP; other addresses likewise

Nothing here survives a fork: file systems are made once a process, and files are opened by the process that reads
them, at the first read.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.webhdfs import WebHDFile, WebHDFS

from heterps.config import Storage
from heterps.errors import DataError, DataUnreachable

T = TypeVar("T")

_VERSION_FIELDS = ("size", "mtime", "modificationTime", "LastModified", "last_modified", "ETag", "etag", "created")
"""Names that file systems have for these facts. A time of access is none of them: reading must change nothing."""

ATTEMPTS = 5
FIRST_DELAY_S = 0.2
"""Delay before the second attempt; it doubles with each one, so that the fifth comes after about 3 s."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_FINAL_WORDS = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "NO_SUCH_KEY", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH")
FAILURES = (OSError, RuntimeError)
"""Errors of file systems that cannot be reached or refuse access; WebHDFS raises RuntimeError."""


def filesystem_of(address: str, storage: Storage = Storage()) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it; raises DataError."""
    try:
        scheme = urlsplit(address).scheme if "://" in address else ""
        if scheme in ("s3", "s3a", "s3n"):
            path = address.split("://", 1)[1].rstrip("/")
            return _s3(os.getpid(), storage, path.split("/", 1)[0]), path
        if scheme in WebHdfs.protocol:
            return WebHdfs(**WebHdfs._get_kwargs_from_urls(address)), WebHdfs._strip_protocol(address)
        fs, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise DataError(f"{address}: this kind of address needs a package: {first_line(error)}.") from None
    except (OSError, ValueError, TypeError) as error:  # TypeError: an address without the host that its kind needs
        hint = " Is Hadoop's libhdfs installed here? webhdfs:// needs none." if address.startswith("hdfs://") else ""
        raise DataError(f"{address}: this is not an address that can be read: {first_line(error)}.{hint}") from None
    return fs, path


class WebHdfs(WebHDFS):  # type: ignore[misc]
    """WebHDFS that checks what a data node answers: fsspec's takes the page of an error for data."""

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        size = block_size or self.blocksize
        return _WebHdfsFile(self, path, mode=mode, block_size=size, tempdir=self.tempdir, autocommit=True)


class _WebHdfsFile(WebHDFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return b""
        answer = self.fs._call("OPEN", path=self.path, offset=start, length=end - start, redirect=False)
        if "Location" in answer.headers:
            answer = self.fs.session.get(self.fs._apply_proxy(answer.headers["Location"]))
        answer.raise_for_status()
        data: bytes = answer.content
        if len(data) != end - start:
            raise OSError(f"{end - start} bytes were asked for, and {len(data)} came")
        return data


@cache
def _s3(process: int, storage: Storage, bucket: str) -> Any:  # noqa: ARG001 a forked process makes its own
    from pyarrow.fs import S3FileSystem

    endpoint = urlsplit(storage.endpoint) if storage.endpoint else None
    s3 = S3FileSystem(
        anonymous=storage.anonymous,
        region=storage.region or _region_of(bucket, storage),
        scheme=endpoint.scheme if endpoint else None,
        endpoint_override=endpoint.netloc if endpoint else None,
        connect_timeout=10,
        request_timeout=30,
    )
    return ArrowFSWrapper(s3, skip_instance_cache=True)


def _region_of(bucket: str, storage: Storage) -> str | None:
    """The region that AWS says a bucket is in, where neither the job nor the environment names one."""
    from pyarrow.fs import resolve_s3_region

    if storage.endpoint or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    try:
        return str(resolve_s3_region(bucket))
    except OSError:
        return None  # reading will say why


def version_of(fs: Any, path: str) -> tuple[str, ...]:
    """Facts about a file that change if it is written anew: its size, and the time of that or a hash, if known."""
    info = fs.info(path)
    return tuple(f"{name}={info[name]}" for name in _VERSION_FIELDS if name in info)


def is_local(fs: Any) -> bool:
    protocol = fs.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def open_remote(fs: Any, path: str) -> Any:
    """Open a file as an Arrow file that several threads may read at any place.

    Reads are exact: Arrow asks for the ranges that it needs, and puts near ones together.
    """
    if isinstance(fs, ArrowFSWrapper):
        return fs.fs.open_input_file(path)
    return pa.PythonFile(fs.open(path, "rb", block_size=1), "r")  # 1: fsspec reads no byte ahead but this one


def retried(address: str, fs: Any, call: Callable[[], T]) -> T:
    """Return what `call` returns. On a remote file system an error that may pass is tried again, after a while.

    Raises what `call` raises; DataUnreachable, which names the address, if that did not help.
    """
    if is_local(fs):
        return call()
    began = time.monotonic()
    for attempt in count(1):
        try:
            return call()
        except _FINAL:
            raise
        except FAILURES as error:
            if any(word in str(error) for word in _FINAL_WORDS):
                raise
            if attempt == ATTEMPTS:
                raise DataUnreachable(
                    f"{address}: cannot be read, after {attempt} attempts in {time.monotonic() - began:.0f} s: "
                    f"{first_line(error)}. Check that its storage is up and that this machine can reach it."
                ) from error
        time.sleep(FIRST_DELAY_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt returns or raises")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
