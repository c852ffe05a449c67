"""Rules: GPUs, their driver and libraries, and the programs on them."""

from __future__ import annotations

from speedrun_operator.diagnosis.rule import Retry, Rule, Weight, sign

RULES = (
    Rule(
        "WrongCudaRuntime",
        "the CUDA 13 runtime is missing: the program ran outside its container, or in one with another CUDA",
        "steps that need it must be in the container, and its base image must have CUDA 13",
        signs=(sign("libcudart.so.13", r"libcudart\.so\.13: cannot open shared object file"),),
    ),
    Rule(
        "KernelVariant",
        "the attention kernel has no build for this PyTorch, CUDA and processor",
        "use the versions of PyTorch and CUDA that the recipe names",
        signs=(
            sign("does not have build: torch"),
            sign("Cannot find a build variant"),
            # In the words of fetch_mentioned.py.
            sign("no build for ", r"no build for (torch|CUDA) \S+ was fetched"),
        ),
    ),
    Rule(
        "UnsupportedGPU",
        "the program does not run on this type of GPU: the attention kernel is built for Hopper",
        "run it on H100 or H200: spec.gpus.type, spec.slurm.partition",
        in_pods="run it on H100 or H200: spec.gpus.type, spec.pods.nodeSelector",
        signs=(
            sign("only supports Hopper GPUs"),
            sign("no kernel image is available for execution on the device"),
            sign("Failed to initialize the TMA descriptor"),
        ),
    ),
    Rule(
        "DriverTooOld",
        "the node's NVIDIA driver is older than the program's CUDA needs",
        "run it on nodes with a newer driver (580 or later runs CUDA 13), or tell the cluster's administrator",
        signs=(
            sign("CUDA driver version is insufficient for CUDA runtime version"),
            sign("The NVIDIA driver on your system is too old"),
            sign("speedrun: the driver is too old"),
        ),
    ),
    Rule(
        "NoGPU",
        "the program found no GPU",
        "tell the cluster's administrator; the next job keeps off the node where there is another",
        signs=(
            sign("assert torch.cuda.is_available()"),
            sign("No CUDA GPUs are available"),
            sign("no CUDA-capable device is detected"),
        ),
        infrastructure=True,
        avoids=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        "CudaOOM",
        "the GPU's memory is too small, or another process holds some of it",
        "use GPUs with more memory, or all those of the recipe; the same on the same GPUs would fail again",
        signs=(sign("OutOfMemoryError: CUDA out of memory"), sign("CUDA error: out of memory")),
    ),
    Rule(
        "GpuFault",
        "a GPU of the node is faulty",
        "tell the cluster's administrator; the next job keeps off the node where there is another",
        signs=(sign("Xid", r"NVRM: Xid|\bXid \(PCI|\bXid: \d+"), sign("ncorrectable ECC error")),
        infrastructure=True,
        avoids=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        "IllegalMemoryAccess",
        "a program on the GPU read or wrote where it must not: as a rule a fault of the program, seldom of the GPU",
        "run it again on another node (spec.slurm.exclude) to tell the two apart",
        in_pods="run it again on another node (spec.pods.nodeSelector) to tell the two apart",
        signs=(sign("an illegal memory access was encountered"),),
        retry=Retry.LIMITED,
    ),
    Rule(
        "NCCLNet",
        "NCCL did not find the network that NCCL_NET names, which a run on one node does not need",
        "unset NCCL_NET in the recipe's step",
        signs=(sign("network IB not found"),),
    ),
    Rule(
        "NCCLTimeout",
        "GPUs waited for each other until NCCL gave up",
        "see which rank stopped first: the log says why",
        signs=(sign("Watchdog caught collective operation timeout"),),
        retry=Retry.LIMITED,
        weight=Weight.GENERAL,
    ),
    Rule(
        "NCCLFailed",
        "GPUs could not talk to each other",
        "the log says what NCCL found; NCCL_DEBUG=INFO in spec.env says more",
        signs=(
            sign("ncclSystemError"),
            sign("ncclUnhandledCudaError"),
            sign("c10::DistBackendError"),
        ),
        retry=Retry.LIMITED,
        weight=Weight.GENERAL,
    ),
    Rule(
        "WorldSize",
        "the program does not run on this number of GPUs",
        "spec.gpus.count must be one of those that the recipe names",
        signs=(sign("world_size must be a divisor of 8"), sign("speedrun: UnsupportedHardware:")),
    ),
)
