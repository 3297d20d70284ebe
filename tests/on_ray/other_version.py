"""A driver of another version: ``python -m tests.on_ray.other_version JOB_ID VERSION``; VERSION is not looked at."""

import sys

from service.driver_main import main
from workers import versions

VERSION = "0.0.1"

if __name__ == "__main__":
    versions.installed_version = lambda: VERSION
    sys.exit(main([sys.argv[1], VERSION]))
