"""Logs of jobs that failed, as programs, Pyxis and Slurm write them, with the cause that each shows."""

from __future__ import annotations

from dataclasses import dataclass

from unit.builders import JobLog

SRUN = "srun: error: slurm-h100-0: task 0: Exited with exit code 1"
SPANK = (
    "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1",
    "slurmstepd: error: Failed to invoke spank plugin stack",
    SRUN,
)
TORCHRUN = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "train_gpt.py FAILED",
    SRUN,
)


@dataclass(frozen=True)
class Trouble:
    """What stands in the log of the stage that failed, and what is made of it.

    `ended`: the backend's word. `wait`: seconds until the next allocation; None: there is none. `remedy`: words of it.
    """

    stage: str
    lines: tuple[str, ...]
    reason: str
    remedy: str
    wait: int | None = None
    ended: str = "JobFailed"

    @property
    def log(self) -> JobLog:
        """The whole log of a job whose only run failed so."""
        log = JobLog().attempt()
        for stage in ("code", "image", "data", "train"):
            if stage == self.stage:
                break
            log = log.begin(stage, 4).end(stage, 9)
        return log.begin(self.stage, 10).line(*self.lines).end(self.stage, 20, code=1).finish(1)


def pyxis(*enroot: str) -> tuple[str, ...]:
    """A container that did not start: enroot's words, indented, in Pyxis'."""
    return (
        "pyxis: importing docker image: nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04",
        "slurmstepd: error: pyxis: child 117 failed with error code: 1",
        "slurmstepd: error: pyxis: failed to import docker image",
        "slurmstepd: error: pyxis: printing enroot log file:",
        *(f"slurmstepd: error: pyxis:     {line}" for line in enroot),
        "slurmstepd: error: pyxis: couldn't start container",
        *SPANK,
    )


HUB = "[ERROR] URL https://registry-1.docker.io/v2"
REMOVE = "remove .cache/image/<key> below slurm.root: `speedrun-operator cache list` says which keys"
CANCELLED = "slurmstepd: error: *** JOB 17 ON slurm-h100-0 CANCELLED AT 2026-07-01T12:00:50"

# The guide's table, "Troubleshooting". Its rows about queueing, sbatch and the login are not of logs.
GUIDE = {
    "a job step fails right after the first key was registered": Trouble(
        "image",
        ("srun: error: Unable to create step for job 17: Required node not available (down, drained or reserved)",),
        "NodesRestarted",
        "run again once they are back",
        wait=180,
    ),
    "the container build fails pulling the image": Trouble(
        "image",
        pyxis(
            "[INFO] Querying registry for permission grant",
            "[INFO] Authenticating with user: <anonymous>",
            f"{HUB}/nvidia/cuda/manifests/13.1.1-cudnn-devel-ubuntu24.04 returned error code: 429",
        ),
        "RegistryRateLimit",
        "credentials for the registry raise the limit: spec.slurm.registrySecretRef",
        wait=3600,
    ),
    "the kernel download from Hugging Face fails": Trouble(
        "train",
        (
            "Traceback (most recent call last):",
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/models/kernels-community/flash-attn3",
            *TORCHRUN,
        ),
        "HFRateLimit",
        "HF_TOKEN",
        wait=600,
    ),
    "an error mentioning libcudart.so.13": Trouble(
        "train",
        ("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory", *TORCHRUN),
        "WrongCudaRuntime",
        "in the container",
    ),
    "an unsupported GPU": Trouble(
        "train",
        ("RuntimeError: FlashAttention only supports Hopper GPUs or newer.", *TORCHRUN),
        "UnsupportedGPU",
        "H100 or H200",
    ),
    "the job ends at the time limit": Trouble(
        "image",
        (f"{CANCELLED} DUE TO TIME LIMIT ***",),
        "TimeLimit",
        "raise spec.timeLimitSeconds; finished steps are skipped",
        ended="TimeLimit",
        wait=0,  # more time, once
    ),
}

SIGNATURES = {
    "time limit": Trouble(
        "train", (f"{CANCELLED} DUE TO TIME LIMIT ***",), "TimeLimit", "raise spec.timeLimitSeconds", wait=0
    ),
    "preempted": Trouble("train", (f"{CANCELLED} DUE TO PREEMPTION ***",), "Preempted", "qos", wait=10),
    "preempted, two messages in one line": Trouble(
        "train",
        (
            "slurmstepd: error: *** STEP 17.0 ON n CANCELLED AT 2026-03-25T10:34:07 slurmstepd: error: *** JOB 17 ON n "
            "CANCELLED AT 2026-03-25T10:34:07 DUE TO PREEMPTION ***",
        ),
        "Preempted",
        "qos",
        wait=10,
    ),
    "node failure": Trouble(
        "train",
        (f"{CANCELLED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",),
        "NodeFailure",
        "spec.slurm.exclude",
        wait=10,
    ),
    "node failure, in srun's words": Trouble(
        "data", ("srun: error: Node failure on slurm-h100-0",), "NodeFailure", "spec.slurm.exclude", wait=10
    ),
    "requeued": Trouble("data", (f"{CANCELLED} DUE TO JOB REQUEUE ***",), "Requeued", "runs it again", wait=10),
    "cancelled by a person": Trouble(
        "train", (f"{CANCELLED} ***", "*** REASON: maintenance ***"), "Cancelled", "scancel", ended="Cancelled"
    ),
    "cancelled, by the log alone": Trouble("train", (f"{CANCELLED} ***",), "Cancelled", "scancel"),
    "hardware memory": Trouble(
        "train",
        ("slurmstepd: error: *** STEP 17.2 ON a UNCORRECTABLE MEMORY ERROR AT 2026-07-01T12:00:00 ***",),
        "HardwareMemory",
        "keeps off the node",
        wait=10,
    ),
    "a step that failed": Trouble(
        "train",
        ("slurmstepd: error: *** STEP 17.2 ON a FAILED (non-zero exit code or other failure mode) ***",),
        "JobFailed",
        "the log says why",
    ),
    "nodes restart: completing": Trouble(
        "data",
        ("srun: error: Unable to create step for job 17: Job/step already completing or completed",),
        "NodesRestarted",
        "once they are back",
        wait=180,
    ),
    "nodes restart: step creation disabled": Trouble(
        "data",
        (
            "srun: Job 17 step creation temporarily disabled, retrying (Required node not available (down, drained or "
            "reserved))",
            SRUN,
        ),
        "NodesRestarted",
        "once they are back",
        wait=180,
    ),
    "nodes restart: the controller": Trouble(
        "data",
        ("srun: error: Unable to confirm allocation for job 17: Unable to contact slurm controller (connect failure)",),
        "NodesRestarted",
        "once they are back",
        wait=180,
    ),
    "nodes restart: expired job": Trouble(
        "data", ("srun: error: Expired or invalid job 17",), "NodesRestarted", "once they are back", wait=180
    ),
    "nodes restart: task launch": Trouble(
        "data",
        ("srun: error: Task launch for StepId=17.1 failed on node a: Communication connection failure",),
        "NodesRestarted",
        "once they are back",
        wait=180,
    ),
    "nodes restart: plugins": Trouble(
        "data",
        ("srun: error: task 0 launch failed: Plugin initialization failed",),
        "NodesRestarted",
        "once they are back",
        wait=180,
    ),
    "step larger than the job": Trouble(
        "data",
        ("srun: error: Unable to create step for job 17: More processors requested than permitted",),
        "StepRefused",
        "would fail again",
    ),
    "host memory": Trouble(
        "data",
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.1. Some of the step tasks have been OOM Killed.",),
        "OutOfMemory",
        "more memory",
    ),
    "host memory, in srun's words": Trouble(
        "data", ("srun: error: a: task 0: Out Of Memory",), "OutOfMemory", "more memory", ended="OutOfMemory"
    ),
    "toomanyrequests": Trouble(
        "image",
        ("toomanyrequests: You have reached your unauthenticated pull rate limit.",),
        "RegistryRateLimit",
        "credentials for the registry raise the limit: spec.slurm.registrySecretRef",
        wait=3600,
    ),
    "a private image": Trouble(
        "image", pyxis(f"{HUB}/acme/none/manifests/1 returned error code: 401"), "RegistryRefused", "registry#name:tag"
    ),
    "a path that is looked up on Docker Hub": Trouble(
        "image",
        pyxis(f"{HUB}/library/cont.sqsh/manifests/latest returned error code: 401"),
        "ImagePathTaken",
        "begin with /",
    ),
    "an invalid image reference": Trouble(
        "image",
        pyxis("[ERROR] Invalid image reference: docker://dockerd://x"),
        "ImageReferenceInvalid",
        "registry#name:tag",
    ),
    "a truncated image": Trouble(
        "data", pyxis("[ERROR] Invalid image format: /home/a/x.sqsh"), "ImageFileBroken", REMOVE
    ),
    "no squashfs": Trouble(
        "data",
        pyxis("FATAL ERROR:Can't find a SQUASHFS superblock on /home/a/x.sqsh"),
        "ImageFileBroken",
        REMOVE,
    ),
    "a half-built image": Trouble(
        "data",
        ("slurmstepd: error: execve(): /opt/venv/bin/python: No such file or directory", SRUN),
        "ImageHalfBuilt",
        REMOVE,
    ),
    "an image that cannot be written": Trouble(
        "image",
        ("slurmstepd: error: pyxis: failed to export container pyxis_17.0 to /home/a/x.sqsh", *SPANK),
        "ImageNotSaved",
        "has space",
    ),
    "a stale container": Trouble(
        "image",
        pyxis("[ERROR] File already exists: /opt/sunk/tmp/enroot-data/user-1001/pyxis_17.0"),
        "StaleContainer",
        "run again",
        wait=10,
    ),
    "no pyxis": Trouble(
        "image", ("srun: unrecognized option '--container-image=x'",), "ContainersUnavailable", "another partition"
    ),
    "disk full": Trouble(
        "image",
        ("Write failed because No space left on device", "FATAL ERROR:Failed to write to output filesystem"),
        "StorageFull",
        ".cache holds images",
    ),
    "quota": Trouble("data", ("OSError: [Errno 122] Disk quota exceeded",), "StorageFull", ".cache holds images"),
    "Hugging Face limits, in xet's words": Trouble(
        "data",
        ("RuntimeError: Data processing error: HTTP status client error (429 Too Many Requests) for url (...)",),
        "HFRateLimit",
        "HF_TOKEN",
        wait=600,
    ),
    "Hugging Face refuses": Trouble(
        "data",
        ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/x",),
        "HFAuth",
        "HF_TOKEN",
    ),
    "a gated repository": Trouble("data", ("huggingface_hub.errors.GatedRepoError: 403",), "HFAuth", "HF_TOKEN"),
    "no such repository": Trouble(
        "data", ("huggingface_hub.errors.RepositoryNotFoundError: 404",), "HFAuth", "HF_TOKEN"
    ),
    "no download": Trouble(
        "data",
        ("huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file",),
        "HFNetwork",
        "tried again",
        wait=60,
    ),
    "no build of the kernel": Trouble(
        "train",
        ("FileNotFoundError: Kernel does not have build: torch210-cxx11-cu126-aarch64-linux", *TORCHRUN),
        "KernelVariant",
        "PyTorch and CUDA",
    ),
    "no kernel image": Trouble(
        "train",
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", *TORCHRUN),
        "UnsupportedGPU",
        "H100 or H200",
    ),
    "the TMA descriptor": Trouble(
        "train", ("Error: Failed to initialize the TMA descriptor 700",), "UnsupportedGPU", "H100 or H200"
    ),
    "an old driver": Trouble(
        "train",
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", *TORCHRUN),
        "DriverTooOld",
        "580",
    ),
    "no GPU": Trouble(
        "train",
        ("    assert torch.cuda.is_available()", "AssertionError", *TORCHRUN),
        "NoGPU",
        "keeps off the node",
        wait=10,
    ),
    "GPU memory": Trouble(
        "train",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.1 GiB",
            *TORCHRUN,
        ),
        "CudaOOM",
        "more memory",
    ),
    "a collective timed out": Trouble(
        "train",
        (
            "[rank3]:[E701 12:00:00] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17)",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            *TORCHRUN,
        ),
        "NCCLTimeout",
        "which rank",
        wait=10,
    ),
    "no InfiniBand": Trouble(
        "train",
        ("NCCL WARN Error: network IB not found.", "torch.distributed.DistBackendError: ncclSystemError", *TORCHRUN),
        "NCCLNet",
        "unset NCCL_NET",
    ),
    "NCCL's system error": Trouble(
        "train", ("ncclSystemError: System call (e.g. socket, malloc) failed",), "NCCLFailed", "NCCL_DEBUG", wait=10
    ),
    "a GPU fell off the bus": Trouble(
        "train", ("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus",), "GpuFault", "administrator", wait=10
    ),
    "an ECC error": Trouble(
        "train",
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", *TORCHRUN),
        "GpuFault",
        "administrator",
        wait=10,
    ),
    "an illegal access": Trouble(
        "train",
        ("RuntimeError: CUDA error: an illegal memory access was encountered", *TORCHRUN),
        "IllegalMemoryAccess",
        "another node",
        wait=10,
    ),
    "no data": Trouble(
        "train",
        ("ValueError: No files found for pattern: data/fineweb10B/fineweb_train_*.bin", *TORCHRUN),
        "DataMissing",
        ".cache below slurm.root",
        wait=10,
    ),
    "a data file of another kind": Trouble(
        "train",
        ("AssertionError: magic number mismatch in the data .bin file",),
        "DataMissing",
        ".cache below slurm.root",
        wait=10,
    ),
    "a short data file": Trouble(
        "train",
        ("AssertionError: number of tokens read does not match header",),
        "DataMissing",
        ".cache below slurm.root",
        wait=10,
    ),
    "three GPUs": Trouble(
        "train", ("AssertionError: world_size must be a divisor of 8",), "WorldSize", "spec.gpus.count"
    ),
    "a package server": Trouble(
        "image",
        ("E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?", SRUN),
        "PackagesUnreachable",
        "tried again",
        wait=60,
    ),
    "no such package": Trouble(
        "image",
        (
            "ERROR: Could not find a version that satisfies the requirement torch==2.99",
            "ERROR: No matching distribution found for torch==2.99",
            SRUN,
        ),
        "PackageMissing",
        "requirements",
    ),
    "no name server": Trouble(
        "image", pyxis("curl: (6) Could not resolve host: auth.docker.io"), "ImageNotFetched", "tried again", wait=60
    ),
    "no way to the repository": Trouble(
        "code",
        ("fatal: unable to access 'https://github.com/x/y.git/': Could not resolve host: github.com",),
        "SourceUnreachable",
        "tried again",
        wait=60,
    ),
    "no such repository of code": Trouble(
        "code",
        ("fatal: repository 'https://github.com/x/none.git/' not found",),
        "SourceRefused",
        "correct the repository",
    ),
    "no such commit": Trouble(
        "code", ("fatal: unable to read tree (f411b3d)",), "RevisionMissing", "correct the revision"
    ),
    "a wrapper alone": Trouble("train", TORCHRUN, "JobFailed", "exit code 1; the log says why"),
}
