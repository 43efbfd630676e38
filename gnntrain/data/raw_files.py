"""Published data sets: finding, downloading and reading their raw files."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import socket
import sys
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnntrain.atomic_io import draft_of
from gnntrain.config import BuiltinConfig
from gnntrain.config.published import PUBLISHED
from gnntrain.data.graph import JSON, GraphData
from gnntrain.data.targets import check_split_number
from gnntrain.errors import UserError
from gnntrain.paths import user_cache
from gnntrain.plugins import told

STALL_SECONDS = 30.0
"""A download that gives no byte for this long has failed."""


def default_root() -> Path:
    """Where raw files lie or are downloaded to when `dataset.root` is not given."""
    return user_cache("dataset.root") / "raw"


@dataclass(frozen=True)
class RawLayout:
    """How a data set's raw files may lie under `dataset.root`."""

    # Folders that may hold the files, relative to the root, most specific first ("" is the root).
    # Case, hyphens and underscores do not count. A download goes to the first.
    places: tuple[str, ...]
    files: tuple[str, ...]  # relative to such a folder
    # Folder names of other data sets with the same file names: a root called so is theirs.
    strangers: frozenset[str] = frozenset()

    def find(self, root: Path) -> Path | None:
        """The first folder under `root` that has all raw files; None if there is none."""
        strangers = set(map(_plain, self.strangers))
        for place in self.places:
            folders = [root]
            for part in map(_plain, Path(place).parts):
                children = [child for folder in folders for child in sorted(folder.glob("*/"))]
                folders = [child for child in children if _plain(child.name) == part]
            for folder in folders:
                owner = folder.parent if folder.name == "raw" else folder
                if not self.missing(folder) and _plain(owner.name) not in strangers:
                    return folder
        return None

    def missing(self, folder: Path) -> list[str]:
        """The names of the files that the folder has not."""
        return [name for name in self.files if not (folder / name).is_file()]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


class PublishedBuilder(ABC):
    """Builds a data set of `PUBLISHED` from its raw files; UserError where it has no such split."""

    def __init__(self, config: BuiltinConfig) -> None:
        self.dataset = config.name
        self.published = PUBLISHED[config.name]
        self.split = config.split
        self.given_root = config.root
        if self.published.splits:
            check_split_number(self.dataset, self.split, self.published.splits)

    def identity(self) -> dict[str, JSON]:
        """Without the raw files, which may be deleted later."""
        return {"dataset": self.dataset, "split": self.split, "root": self.given_root}

    def build(self) -> GraphData:
        """Read the raw files, downloaded if they are not all there; UserError where they cannot be
        downloaded or read."""
        root = Path(self.given_root) if self.given_root is not None else default_root()
        raw_dir = self.layout().find(root) or self._downloaded(root)
        try:
            return self.read(raw_dir)
        except UserError:
            raise
        except Exception as error:  # PyG, zipfile, pyarrow, pandas and NumPy raise many types
            raise UserError(
                f"dataset={self.dataset}: the raw files in {raw_dir} cannot be read "
                f"({told(error)}).",
                "They may be incomplete or not the original: remove them to have them downloaded "
                "again.",
            ) from error

    def _downloaded(self, root: Path) -> Path:
        """The folder of the raw files, after their download to a new folder under the root, which
        moves into place when it is whole. Files that were there before are kept as they are."""
        layout = self.layout()
        target = root / layout.places[0]
        try:
            draft = draft_of(root / f"{self.dataset}-download", is_folder=True)
            with draft as scratch, _network_timeouts(), quiet():
                fetched = self.download(scratch)
                for name in layout.files:
                    _refuse_truncated(fetched / name, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    fetched.rename(target)
                for name in layout.missing(target):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(fetched / name, target / name)
        except UserError:
            raise
        except Exception as error:  # whatever PyG, OGB, fsspec or the disk raises: same advice
            brief = told(error).partition("\n")[0][:200]
            raise UserError(
                f"dataset={self.dataset}: its raw files are not in {root}, and they could not be "
                f"downloaded ({brief}).",
                f"Put {', '.join(layout.missing(target))} into {target}, or set dataset.root to "
                "the folder that holds them; nothing is downloaded then.",
            ) from error
        return target

    @abstractmethod
    def layout(self) -> RawLayout:
        """How the raw files may lie."""

    @abstractmethod
    def download(self, scratch: Path) -> Path:
        """Put the raw files into the empty folder `scratch`; returns the folder, in there, that
        `layout().files` are relative to."""

    @abstractmethod
    def read(self, raw_dir: Path) -> GraphData:
        """Read the raw files, which lie in `raw_dir`."""


@contextlib.contextmanager
def _network_timeouts() -> Iterator[None]:
    """No download hangs: sockets and fsspec's HTTP client give up on a silent server."""
    import aiohttp
    from fsspec.config import conf  # type: ignore[import-untyped]  # it has no types

    timeout_before, conf_before = socket.getdefaulttimeout(), dict(conf)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL_SECONDS, sock_read=STALL_SECONDS)
    options = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
    conf.update(http=options, https=options)
    socket.setdefaulttimeout(STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(timeout_before)
        conf.clear()
        conf.update(conf_before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of PyG and OGB; on a terminal, progress bars stay."""
    stderr = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
        yield


def _refuse_truncated(path: Path, name: str) -> None:
    """Raise ValueError for a truncated file: a connection that closes early raises no error."""
    try:
        if path.suffix in (".npz", ".npy"):  # HeCo calls an npy file npz
            np.load(path, mmap_mode="r", allow_pickle=False)
        elif path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.stat().st_size == 0:
            raise ValueError
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} did not arrive whole") from error
