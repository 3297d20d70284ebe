"""A server as its users meet it: commands in subprocesses, in a home of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(sys.executable).parent


@dataclass
class Home:
    """The environment of a user who has only this home; ``run`` is their shell."""

    folder: Path
    data_root: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """A clean environment: nothing of the caller's Ray or Graphmill reaches the commands."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GRAPHMILL_", "RAY_"))}
        given = {"GRAPHMILL_DATA_ROOT": str(self.data_root)} if self.data_root else {}
        path = f"{SCRIPTS}{os.pathsep}{kept['PATH']}"
        return {**kept, **given, "PATH": path, "GRAPHMILL_HOME": str(self.folder), "NO_COLOR": "1", "COLUMNS": "160"}

    def run(self, *words: str, cwd: Path | None = None, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            words, capture_output=True, text=True, timeout=timeout_s, env=self.environment, cwd=cwd, check=False
        )

    @contextmanager
    def serving(self) -> Iterator["Server"]:
        """``graphmill serve``, ended by Ctrl-C on the way out if it still runs."""
        command = [str(SCRIPTS / "graphmill"), "serve", "--port", "0", "--json"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=self.environment, start_new_session=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, f"graphmill serve ended with {process.wait()}"
                yield Server(process=process, **json.loads(line))
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait(timeout=60)


@dataclass
class Server:
    """A running ``graphmill serve`` and what it announced."""

    process: subprocess.Popen[str]
    api: str
    docs: str
    dashboard: str
    key_file: str
