"""What `data get` does where no Hub is needed."""

import fcntl
import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from speedrun_trainer import fetch
from speedrun_trainer.__main__ import main


def test_the_lock_may_be_another_user_s() -> None:
    with TemporaryDirectory() as name:
        lock = Path(name) / ".lock"
        lock.touch(mode=0o444)
        Path(name).chmod(0o755)
        own = os.geteuid()
        if own == 0:
            os.seteuid(65534)
        try:
            with fetch.only_one(Path(name), print), lock.open() as second, pytest.raises(BlockingIOError):
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.seteuid(own)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("12", 12),
        ("nan", None),
        ("inf", math.inf),
        ("-3", 0),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, expected: float | None) -> None:
    assert fetch.retry_after(value) == expected


def test_more_shards_than_there_are_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "--data", str(tmp_path), "--shards", "104"]) == 4
    assert "--shards 104: the dataset has 103" in capsys.readouterr().err
