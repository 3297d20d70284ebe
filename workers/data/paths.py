"""Where data comes from and where it goes: the two folders that the whole data floor is given."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataPaths:
    """``root`` holds raw data sets and is only ever read (None: there is none); ``cache`` is ours, and is written."""

    root: Path | None
    cache: Path
