#!/usr/bin/python3
"""What `data/cached_fineweb10B.py N` leaves behind, without the network: a validation shard and N training shards.

The shards are tiny but of the real format: 256 int32 of header (magic, version, number of tokens), then the tokens
as uint16. STUB_DATA_FAIL=1 fails as the hub does when it limits anonymous downloads.
"""

import array
import os
import sys
from pathlib import Path

MAGIC, VERSION, TOKENS = 20240520, 1, 1024
DEFAULT_SHARDS = 103


def main(script: str, count: int) -> None:
    name = Path(script).stem.removeprefix("cached_")
    directory = Path(script).resolve().parent / name
    directory.mkdir(exist_ok=True)
    shards = ["fineweb_val_000000.bin", *(f"fineweb_train_{number:06d}.bin" for number in range(1, count + 1))]
    for shard in shards:
        path = directory / shard
        if path.exists():
            continue
        if os.environ.get("STUB_DATA_FAIL"):
            sys.exit(
                "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
                f"https://huggingface.co/datasets/kjj0/{name}-gpt2/resolve/main/{shard}"
            )
        header = array.array("i", [MAGIC, VERSION, TOKENS] + [0] * 253)
        path.write_bytes(header.tobytes() + array.array("H", range(TOKENS)).tobytes())
        print(f"{shard}: 100%")


main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_SHARDS)
