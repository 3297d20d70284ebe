"""A driver of another version of graphmill: ``python -m tests.on_ray.other_version JOB_ID``."""

import sys

import service.ray_training
from service.driver_main import main

VERSION = "0.0.1"

if __name__ == "__main__":
    service.ray_training.version = lambda distribution: VERSION
    sys.exit(main(sys.argv[1:]))
