"""Problem documents (RFC 9457): how every error of the API looks."""

from pydantic import Field

from api.schemas.view import View

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FaultView(View):
    """One fault of what was sent."""

    pointer: str = Field(description="JSON pointer into the document; /query/NAME or /header/NAME for parameters")
    detail: str = Field(description="what was found")
    fix: str = Field(description="what to change")


class Problem(View):
    """What went wrong. ``code`` is stable and meant for programs; ``detail`` is meant for people."""

    type: str = Field(description="urn:graphmill:problem:CODE")
    code: str
    title: str
    status: int
    detail: str
    instance: str = Field(default="", description="the path that was asked")
    errors: tuple[FaultView, ...] = Field(default=(), description="every fault of the request at once")
    state: str | None = Field(default=None, description="the job's state, where that is the obstacle")
