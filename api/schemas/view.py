"""The base of all bodies that the API sends: frozen, and lenient when read, so an older client reads newer answers."""

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """What a request gets back."""

    model_config = ConfigDict(frozen=True, extra="ignore")
