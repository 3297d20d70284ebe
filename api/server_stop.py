"""Ending the API and the embedded cluster from another process."""

import os
import signal
import time
from contextlib import suppress

from api.server_state import read_server_state
from service.embedded import stop_cluster
from service.settings import load_settings

_PATIENCE_S = 30.0  # the API ends its streams, its dispatcher and then the cluster


def stop_everything() -> dict[str, bool]:
    """Which of "api" and "cluster" were running; after this, neither is. Works on what a crash left behind, too."""
    settings = load_settings()
    state = read_server_state(settings)
    api_ran = state is not None
    if state is not None:
        with suppress(ProcessLookupError):
            os.kill(state.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while state.process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if state.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(state.process.pid, signal.SIGKILL)
    cluster_ran = stop_cluster(settings)
    return {"api": api_ran, "cluster": cluster_ran or (api_ran and settings.ray_dashboard is None)}
