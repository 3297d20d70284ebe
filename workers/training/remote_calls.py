"""Calls to processes elsewhere, as those who make them see it: no word of what carries them."""

from typing import Any, Protocol


class ActorLostError(RuntimeError):
    """Who was asked is gone, or not back yet, or its answer is lost; the message has the words of who carries calls."""


class RemoteCalls(Protocol):
    """``num_actors`` processes that answer requests alike, numbered from 0. Every call may come from any thread."""

    num_actors: int

    def name(self, actor: int) -> str:
        """``actor`` in words that find it: number, process and node."""

    def ask(self, actor: int, request: Any) -> Any:
        """Send ``request`` without waiting; gives what stands for the answer, which is kept for as long as that is."""

    def has_come(self, asked: Any, *, within_s: float) -> bool:
        """Whether there is an answer, or an end, of what was ``asked``; waits for it that long at most."""

    def answer(self, asked: Any) -> Any:
        """What was answered. Raises ``ActorLostError``, and whatever the actor raised."""

    def where(self, actor: int) -> str:
        """The stack of what ``actor`` does now; or that it does not say, which it has a moment for."""

    def restart(self, actor: int) -> None:
        """End the process of ``actor`` and have a fresh one in its place."""
