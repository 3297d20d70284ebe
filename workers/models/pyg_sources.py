"""What PyG leaves in the temporary folder: a source file per convolution class and process, and its byte code.

PyG writes each class's ``propagate`` from a template, imports it, and never removes the file. A process that builds
models would leave some behind with each job, so they go once they are imported; Python needs them no more.
"""

import sys
from pathlib import Path

_WRITTEN_BY_PYG = ("_propagate", "_edge_updater")


def remove_generated_sources() -> None:
    """Remove the files of all such modules that this process has imported by now."""
    for name, module in tuple(sys.modules.items()):
        source = getattr(module, "__file__", None)
        # A module's own file is called as the module; PyG's has a random end.
        if name.endswith(_WRITTEN_BY_PYG) and source and Path(source).name.startswith(f"{name}_"):
            Path(source).unlink(missing_ok=True)
            Path(module.__cached__).unlink(missing_ok=True)
