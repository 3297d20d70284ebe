"""The base of every value that crosses a process or a file: immutable, and unknown fields are refused."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A frozen pydantic value; equality is by content, ``model_dump_json`` is its wire form."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
