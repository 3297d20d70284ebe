"""Several machines on one: network namespaces on a bridge, each behind a link of a given rate.

Every namespace has a real address of its own, reaches the others and the bridge, and can be cut off. Names are unique
per call, and everything is removed at the end whatever happens, also when the test is killed. Needs root:
``needs_namespaces`` skips by name.
"""

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Namespace:
    """One machine: its name for ``ip netns``, its address, and the bridge's end of its cable."""

    name: str
    address: str
    link: str

    def command(self, *arguments: str) -> list[str]:
        """The command that runs ``arguments`` inside."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def cut(self) -> None:
        """Pull the cable."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Put it back."""
        _ip("link", "set", self.link, "up")


def needs_namespaces() -> None:
    """Skip the test where namespaces cannot be made, and say so."""
    try:
        with namespaces(1):
            return
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"network namespaces cannot be made here (root and CAP_NET_ADMIN are needed): {error}")


@contextmanager
def namespaces(count: int, *, rate: str = "1gbit") -> Iterator[list[Namespace]]:
    """``count`` namespaces that reach each other at ``rate`` (as ``tc`` spells it) in either direction."""
    tag = secrets.token_hex(3)
    bridge, subnet = f"gmb{tag}", _free_subnet()
    spaces = [
        Namespace(name=f"gm{tag}-{place}", address=f"{subnet}.{place + 1}", link=f"gm{tag}v{place}")
        for place in range(count)
    ]
    with _removed_at_the_end(spaces, bridge=bridge):
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for space in spaces:
            _plug_in(space, bridge=bridge, gateway=f"{subnet}.254", rate=rate)
        yield spaces


@contextmanager
def _removed_at_the_end(spaces: Sequence[Namespace], *, bridge: str) -> Iterator[None]:
    """A process of its own waits for the end of a pipe, which comes when we close it or die, and removes all."""
    script = ["cat", *(f"ip netns del {space.name}; ip link del {space.link}" for space in spaces)]
    remover = subprocess.Popen(
        ["sh", "-c", "; ".join([*script, f"ip link del {bridge}"])],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert remover.stdin is not None
    try:
        yield
    finally:
        remover.stdin.close()
        remover.wait(timeout=20)


def _plug_in(space: Namespace, *, bridge: str, gateway: str, rate: str) -> None:
    inside = f"{space.link}i"
    shape = ("qdisc", "add", "dev", "root", "tbf", "rate", rate, "burst", "512kb", "latency", "100ms")
    _ip("netns", "add", space.name)
    _ip("link", "add", space.link, "type", "veth", "peer", "name", inside, "netns", space.name)
    _ip("link", "set", space.link, "master", bridge, "up")
    for arguments in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "addr", "add", f"{space.address}/24", "dev", inside),
        ("ip", "link", "set", inside, "up"),
        ("ip", "route", "add", "default", "via", gateway),  # Ray finds a node's address by the way to the internet
        ("tc", *_with_device(shape, inside)),
    ):
        _run(space.command(*arguments))
    _run(["tc", *_with_device(shape, space.link)])


def _with_device(shape: Sequence[str], device: str) -> list[str]:
    return [part for each in shape for part in ((each, device) if each == "dev" else (each,))]


def _free_subnet() -> str:
    """The first three numbers of a /24 that no route of this machine mentions."""
    routes = _run(["ip", "route", "show", "table", "all"])
    while True:
        subnet = f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
        if f"{subnet}." not in routes:
            return subnet


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
