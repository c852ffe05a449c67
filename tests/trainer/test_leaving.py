"""A rank that cannot go on says so at once, whatever parting from the others takes."""

import sys
from pathlib import Path

from conftest import Processes

TWO = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
# Parting waits for the others, as NCCL's does while they wait in a sum for this rank.
PARTING_WAITS = """
import sys, threading
import torch.distributed as dist
from speedrun_trainer.train import main
dist.destroy_process_group = lambda: threading.Event().wait(90)
sys.exit(main())
"""


def test_the_reason_does_not_wait_for_the_others(smoke_data: Path, tmp_path: Path, processes: Processes) -> None:
    """Only rank 0 writes metrics, and its disk is full."""
    (tmp_path / "run.py").write_text(PARTING_WAITS)
    options = ["--data", str(smoke_data), "--metrics", "/dev/full"]
    code, _, err = processes.run([sys.executable, *TWO, str(tmp_path / "run.py"), *options], within=80)
    assert code == 1
    assert "No space left on device: '/dev/full'" in err, err
    assert "exitcode  : 6 " in err, err
