"""What goes to the ledger beside the batch script, as one archive, and how the job opens it. Pure.

One file, so that a submission carries it whole or not at all. The job opens it at its start and removes it; secrets go
from their file into its shell, and that file goes at once. A job that was cancelled before it started leaves none,
since cancelling removes the archive.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence

from speedrun_operator.backends.package import sources
from speedrun_operator.planning import RunPlan
from speedrun_operator.sealed.sealed import Sealed

PARCEL = "parcel"  # the directory in the ledger
CODE, PATCH, SECRETS = "code", "patch.diff", "secrets"

OPEN = rf"""
git_secret='' registry_user='' registry_netrc=''
open_parcel() {{
  local kind name value
  if [ -f "$ledger/PACKAGE" ]; then
    mkdir -p "$ledger/{PARCEL}" && tar -xzf "$ledger/PACKAGE" -C "$ledger/{PARCEL}" && rm -f "$ledger/PACKAGE" || return
  fi
  [ -f "$ledger/{PARCEL}/{SECRETS}" ] || return 0
  while IFS= read -r -d '' kind && IFS= read -r -d '' name && IFS= read -r -d '' value; do
    case $kind in
    env) export "$name=$value" ;;
    git) git_secret=$value ;;
    registry) registry_user=$name registry_netrc=$value ;;
    esac
  done <"$ledger/{PARCEL}/{SECRETS}"
  rm -f "$ledger/{PARCEL}/{SECRETS}"
}}
open_parcel || {{ echo "speedrun: $ledger/PACKAGE cannot be opened on $(hostname)" >&2; exit 74; }}
""".strip()


def parcel(plan: RunPlan) -> bytes:
    """The archive (a gzipped tar) for one allocation; empty where nothing goes with it. Same contents, same bytes."""
    files = [(f"{CODE}/{name}", content) for name, content in (sources(plan.package) if plan.package else ())]
    if plan.sealed.patch:
        files.append((PATCH, plan.sealed.patch))
    if plan.sealed.secret:
        files.append((SECRETS, _records(plan.sealed)))
    return _archive(files) if files else b""


def _records(sealed: Sealed) -> bytes:
    """Kind, name and value, each followed by NUL, which none of them holds."""
    records = [("env", name, value) for name, value in sealed.environment]
    if sealed.git:
        records.append(("git", "", sealed.git))
    if sealed.registry:
        records.append(("registry", *sealed.registry))
    return "".join(f"{text}\0" for record in records for text in record).encode()


def _archive(files: Sequence[tuple[str, bytes]]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)
