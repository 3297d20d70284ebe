"""Everything that only a GPU can show, as one script of a few minutes: ``python -m tests.gpu.check [SECTION …]``.

Needs a CUDA build of torch with Triton, and nothing else; a section that wants more (the runtime's own data readers) is
skipped by name. Prints a line per section and, last, one JSON object. Exit code 0: nothing failed.
"""

import argparse
import json
import sys
import time
import traceback
from importlib.metadata import version
from typing import Any

import torch

from tests.gpu.sections import SECTIONS


def main(arguments: list[str] | None = None) -> int:
    """Run the sections that are named, by default all; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    names = parser.parse_args(arguments).sections or list(SECTIONS)
    if unknown := sorted(set(names) - set(SECTIONS)):
        parser.error(f"no sections {unknown}; there are {', '.join(SECTIONS)}")
    if not torch.cuda.is_available():
        print(f"skipped, as there is no GPU: {', '.join(names)}")
        return 0
    seen: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": version("triton"),
    }
    failed = []
    for name in names:
        started = time.perf_counter()
        try:
            found: Any = SECTIONS[name]()
            verdict = "passed"
        except ImportError as error:
            found, verdict = str(error), "skipped"
        except Exception as error:  # the other sections still have something to say
            traceback.print_exc()
            found, verdict = f"{type(error).__name__}: {error}", "FAILED"
            failed.append(name)
        seen[name] = {"verdict": verdict, "seconds": round(time.perf_counter() - started, 1), "found": found}
        print(f"{verdict} {name} ({seen[name]['seconds']} s): {found}", flush=True)
    print(json.dumps(seen), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
