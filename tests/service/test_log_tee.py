import os
import subprocess
import sys
from pathlib import Path

# In a process of its own, because the streams of a test belong to pytest.
PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from service.log_tee import LogTee
print("before")
tee = LogTee(Path(sys.argv[1]))
tee.start()
print("from python")
sys.stderr.write("from stderr\\n")
os.write(1, b"from c\\n")
subprocess.run(["echo", "from a child"], check=True)
tee.stop()
print("after")
"""


def test_everything_printed_meanwhile_is_in_both_places(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True, check=True)
    printed = {"from python", "from stderr", "from c", "from a child"}
    assert set(log.read_text().splitlines()) == printed
    assert set(done.stdout.splitlines()) == {"before", "after"} | printed


def test_a_child_that_keeps_the_streams_does_not_hold_up_the_end(tmp_path: Path) -> None:
    program = PROGRAM.replace('["echo", "from a child"], check=True', '"sleep 30 & echo from a child", shell=True')
    done = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert done.wait(timeout=20) == 0
    finally:
        os.killpg(done.pid, 9)
        assert done.stdout is not None
        done.stdout.close()
    assert "from a child" in (tmp_path / "log").read_text()


def test_a_second_driver_of_the_same_job_appends(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "log")], capture_output=True, check=True)
    assert (tmp_path / "log").read_text().count("from c") == 2
