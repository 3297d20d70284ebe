"""What ``ray start`` of the embedded cluster calls with its parameters before it starts anything (RAY_START_HOOK)."""

from typing import Any


def without_client_server(ray_params: Any, head: bool) -> None:
    """Start no Ray Client server: nothing of ours speaks that protocol, and it has no switch of its own."""
    ray_params.ray_client_server_port = None
