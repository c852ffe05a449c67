"""Logs of jobs that failed, as in `troubles`: those that show one sign each, and those that could be mistaken."""

from __future__ import annotations

from unit.diagnosis.troubles import SRUN, TORCHRUN, Trouble, pyxis

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
}
