"""Logs of jobs that failed, as in `troubles`: those that show one sign each, and those that could be mistaken."""

from __future__ import annotations

from collections.abc import Mapping

from unit.diagnosis.troubles import REMOVE, SRUN, TORCHRUN, Trouble, pyxis

PROLOG = "srun: Job 17 step creation temporarily disabled, retrying (Job prolog is still running)"

REFUSED = {
    "a wrong password on Docker Hub": "https://auth.docker.io/token returned error code: 401 Unauthorized",
    "a token of Docker Hub that is asked for by its service": "https://auth.docker.io/token?service=registry.docker.io"
    "&scope=repository:acme/x:pull returned error code: 401 Unauthorized",
    "a key without a right on NGC": "https://nvcr.io/proxy_auth?account=$oauthtoken&scope=repository:acme/x:pull "
    "returned error code: 403 Forbidden",
    "a registry that asks for a login": "https://registry.acme.example/v2/ returned error code: 401 Unauthorized",
    "no such image": "https://ghcr.io/v2/acme/x/manifests/1 returned error code: 404 Not Found",
    "no such service of tokens": "https://ghcr.io/token returned error code: 404 Not Found",
}

# Reason → stage, words of its remedy, seconds until the next allocation, and lines of which each proves it alone.
ALONE: Mapping[str, tuple[str, str, int | None, tuple[str, ...]]] = {
    "StorageUnwritable": (
        "code",
        "every node shares",
        60,
        ("speedrun: cannot write to /home/a/speedruns/lab/x/alloc-0 on slurm-h100-0",),
    ),
    "JobFailed": (
        "train",
        "the log says why",
        None,
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            SRUN,
            "slurmstepd: error: Failed to invoke spank plugin stack",
            "slurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-07-01T12:00:00 DUE TO TASK FAILURE ***",
        ),
    ),
    "RegistryRateLimit": (
        "image",
        "registrySecretRef",
        3600,
        (
            "toomanyrequests: Rate exceeded",
            "You have reached your unauthenticated pull rate limit. https://www.docker.com/increase-rate-limit",
        ),
    ),
    "ImageHalfBuilt": (
        "train",
        REMOVE,
        None,
        (
            "bash: line 3: /opt/venv/bin/torchrun: No such file or directory",
            "slurmstepd: error: execve(): python3.12: No such file or directory",
        ),
    ),
    "ContainersUnavailable": (
        "image",
        "another partition",
        None,
        (
            'slurmstepd: error: Warning: SPANK plugin "pyxis" option "container-image" not found',
            "error: spank: /usr/lib/slurm/spank_pyxis.so: Incompatible plugin version",
        ),
    ),
    "ContainerFailed": (
        "image",
        "keeps off the node",
        10,
        (
            "slurmstepd: error: pyxis: couldn't mkdir /run/pyxis/1001: Permission denied",
            "mkdir: cannot create directory '/run/enroot': Permission denied",
            "slurmstepd: error: pyxis:     nvidia-container-cli: initialization error: driver error",
            "slurmstepd: error: pyxis: couldn't start container",
            "slurmstepd: error: pyxis: container exited too soon",
            "slurmstepd: error: pyxis: container start failed with error code: 1",
            "slurmstepd: error: pyxis: failed to create container filesystem",
            "slurmstepd: error: pyxis: failed to start container",
        ),
    ),
    "ContainerFolder": (
        "train",
        "every node has",
        None,
        ("slurmstepd: error: pyxis: couldn't chdir to /home/a/x: No such file or directory",),
    ),
    "HFRateLimit": ("data", "HF_TOKEN", 600, ("HTTP Error 429 Too Many Requests thrown while requesting HEAD",)),
    "HFAuth": (
        "data",
        "HF_TOKEN",
        None,
        (
            "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api/x",
            "ValueError: Invalid user token. If you didn't pass a user token, make sure you are logged in",
        ),
    ),
    "HFNetwork": (
        "data",
        "no way to huggingface.co",
        60,
        (
            "TimeoutError: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
            "exceeded with url: /api/x (Caused by NewConnectionError('Failed to establish a new connection'))",
            "huggingface_hub.errors.HfHubHTTPError: 502 Server Error: Bad Gateway for url: https://huggingface.co/x",
        ),
    ),
    "SourceRefused": (
        "code",
        "correct the repository",
        None,
        (
            "fatal: Authentication failed for 'https://github.com/x/y.git/'",
            "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
        ),
    ),
    "RevisionMissing": (
        "code",
        "correct the revision",
        None,
        (
            "fatal: reference is not a tree: 0f0e0d0c",
            "error: pathspec 'mine' did not match any file(s) known to git",
            "speedrun: UnknownRevision: mine",
        ),
    ),
    "UnsupportedSource": (
        "code",
        "correct spec.recipe.source",
        None,
        ("speedrun: UnsupportedSource: at the root of the code there is none of: package:a:8",),
    ),
    "PatchFailed": (
        "code",
        "make it again from the commit",
        None,
        (
            "speedrun: the patch does not apply to 0f0e; make it again from that commit",
            "speedrun: the patch is not the one that this Speedrun was admitted with",
        ),
    ),
    "SourceUnreachable": (
        "code",
        "no way to the repository",
        60,
        ("fatal: unable to look up github.com (port 9418) (Name or service not known)",),
    ),
    "PackagesUnreachable": (
        "image",
        "no way to the package mirror",
        60,
        (
            "E: Failed to fetch http://mirror.example/dists/noble/InRelease  Connection timed out",
            "Could not fetch URL https://mirror.example/simple/torch/: There was a problem confirming the ssl "
            "certificate",
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('refused')': /simple/x",
        ),
    ),
    "PackageMissing": (
        "image",
        "correct the requirements",
        None,
        (
            "ERROR: Could not find a version that satisfies the requirement torch==2.99 (from versions: 2.9.0)",
            "E: Unable to locate package gcc-99",
        ),
    ),
    "NetworkDown": (
        "data",
        "no way out",
        60,
        ("curl: (6) Could not resolve host: mirror.example", "socket.gaierror: Temporary failure in name resolution"),
    ),
    "DataMissing": (
        "train",
        ".cache below slurm.root",
        10,
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/fineweb10B/fineweb_val_000000.bin'",),
    ),
    "KernelVariant": (
        "data",
        "PyTorch and CUDA",
        None,
        (
            "ValueError: Cannot find a build variant for this system in some/kernel",
            "some/kernel: no build for torch 2.10.0+cu128 was fetched: ['torch29-cxx11-cu128-x86_64-linux']",
        ),
    ),
    "DriverTooOld": (
        "train",
        "580",
        None,
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
            "speedrun: the driver is too old: 570.86 is there, and CUDA 13 needs 580",
        ),
    ),
    "NoGPU": (
        "train",
        "keeps off the node",
        10,
        (
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
        ),
    ),
    "CudaOOM": ("train", "more memory", None, ("RuntimeError: CUDA error: out of memory",)),
    "NCCLFailed": (
        "train",
        "NCCL_DEBUG",
        10,
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
        ),
    ),
    "WorldSize": (
        "code",
        "spec.gpus.count",
        None,
        ("speedrun: UnsupportedHardware: the code runs on 8 GPUs",),
    ),
}

SIGNS = {
    "a prolog that takes its time, then a package that is not there": Trouble(
        "image",
        (PROLOG, "ERROR: No matching distribution found for torch==2.99", SRUN),
        "PackageMissing",
        "correct the requirements",
    ),
    "a prolog that takes its time, then an image that is refused": Trouble(
        "image",
        (
            PROLOG,
            *pyxis("[ERROR] URL https://registry-1.docker.io/v2/acme/x/manifests/1 returned error code: 401"),
        ),
        "RegistryRefused",
        "correct the name",
    ),
    "a prolog that takes its time, then too little GPU memory": Trouble(
        "train",
        (PROLOG, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", *TORCHRUN),
        "CudaOOM",
        "more memory",
    ),
    **{
        title: Trouble(
            "image",
            pyxis(
                "[INFO] Querying registry for permission grant",
                "[INFO] Authenticating with user: acme",
                f"[ERROR] URL {words}",
            ),
            "RegistryRefused",
            "credentials for the registry: spec.slurm.registrySecretRef",
        )
        for title, words in REFUSED.items()
    },
    **{
        f"{reason}: {line}": Trouble(stage, (line,), reason, remedy, wait)
        for reason, (stage, remedy, wait, lines) in ALONE.items()
        for line in lines
    },
}
