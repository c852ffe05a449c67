"""Rules: Pyxis, enroot and image registries. Pyxis repeats enroot's lines indented."""

from __future__ import annotations

from speedrun_operator.diagnosis.rule import Retry, Rule, Weight, sign

# enroot reads its own file of credentials only where an image's reference names a user, which the operator sees to.
_SECRET = "spec.slurm.registrySecretRef names the Secret that holds them"
_PULL_SECRET = "spec.pods.imagePullSecrets names the Secret that holds them"
_REMOVE = "remove .cache/image/<key> below slurm.root: `speedrun-operator cache list` says which keys there are"

RULES = (
    Rule(
        "RegistryRateLimit",
        "the registry limits pulls: Docker Hub does so for anonymous ones by address, for up to six hours",
        f"it is tried again after an hour; credentials for the registry raise the limit: {_SECRET}",
        in_pods=f"it is tried again after an hour; credentials for the registry raise the limit: {_PULL_SECRET}",
        signs=(
            sign("returned error code: 429", r"URL https?://\S+ returned error code: 429"),
            sign("toomanyrequests"),
            sign("pull rate limit"),
        ),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=3600,
    ),
    Rule(
        "ImagePathTaken",
        "the path of an image file was looked up on Docker Hub",
        "a path must begin with / or ./",
        signs=(sign(".sqsh/manifests/", r"/v2/\S+\.sqsh/manifests/\S+ returned error code: 40[134]"),),
    ),
    Rule(
        "RegistryRefused",
        "the registry refuses the image: its name is wrong, or it is private",
        f"correct the name (registry#name:tag), or the credentials for the registry: {_SECRET}",
        in_pods=f"correct the name (registry/name:tag), or the credentials for the registry: {_PULL_SECRET}",
        signs=(sign("returned error code: 40", r"URL https?://\S+ returned error code: 40[134]"),),
    ),
    Rule(
        "ImageReferenceInvalid",
        "the image's name is none that enroot knows",
        "write registry#name:tag, or the path of a .sqsh file beginning with /",
        signs=(sign("Invalid image reference:"),),
    ),
    Rule(
        "ImageFileBroken",
        "the container image's file is not whole",
        f"one of the cache is built again by itself, once; if it stays so, {_REMOVE}",
        in_pods="see that the image's registry has it whole (spec.pods.image)",
        signs=(sign("Invalid image format:"), sign("Can't find a SQUASHFS superblock")),
    ),
    Rule(
        "ImageHalfBuilt",
        "the container image lacks what its build should have put there",
        f"see that the recipe's build puts it there; to have it built again, {_REMOVE}",
        in_pods="use an image that has it (spec.pods.image)",
        signs=(
            sign("/opt/venv/bin/", r"/opt/venv/bin/\S+: No such file or directory"),
            sign("execve()", r"execve\(\):.*No such file or directory"),
        ),
    ),
    Rule(
        "StaleContainer",
        "a container of an earlier job was left on the node",
        "nothing; it is run again",
        signs=(sign("File already exists:", r"File already exists: \S*pyxis_"),),
        infrastructure=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        "ContainersUnavailable",
        "the node has no working Pyxis, which containers need",
        "choose another partition in spec.slurm.partition, and tell the cluster's administrator",
        signs=(
            sign("unrecognized option", r"unrecognized option '--container-"),
            sign("container-image", r'option "container-image" not found'),
            sign("Incompatible plugin version"),
        ),
    ),
    Rule(
        "ContainerFailed",
        "the node could not start the container",
        "tell the cluster's administrator; the next job keeps off the node where there is another",
        signs=(
            sign("couldn't mkdir /run/pyxis"),
            sign("cannot create directory", r"cannot create directory .?/run/enroot"),
            sign("nvidia-container-cli: "),
            sign("pyxis: couldn't start container"),
            sign("pyxis: container exited too soon"),
            sign("pyxis: container start failed"),
            sign("pyxis: failed to create container filesystem"),
            sign("pyxis: failed to start container"),
        ),
        infrastructure=True,
        avoids=True,
        retry=Retry.LIMITED,
        weight=Weight.GENERAL,
    ),
    Rule(
        "ContainerFolder",
        "the container does not have the folder that the job works in",
        "slurm.root must be a path that every node has",
        signs=(sign("pyxis: couldn't chdir to "),),
    ),
    Rule(
        "ImageNotSaved",
        "the container image was built and could not be written",
        "see that slurm.root can be written on the nodes and has space; the log says what Pyxis found",
        signs=(sign("pyxis: failed to export container"),),
        infrastructure=True,
        weight=Weight.GENERAL,
    ),
    Rule(
        "ImageNotFetched",
        "the container image could not be fetched",
        "it is tried again; the log says what the registry answered",
        in_pods="it is tried again; the message says what the registry answered",
        signs=(sign("pyxis: failed to import docker image"),),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
        weight=Weight.GENERAL,
    ),
)
