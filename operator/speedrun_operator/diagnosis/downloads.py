"""Rules: storage, code, packages, data and what else a run fetches."""

from __future__ import annotations

from speedrun_operator.diagnosis.rule import Retry, Rule, Weight, sign

RULES = (
    Rule(
        "StorageFull",
        "no space is left, or the quota is used up",
        "free some: below slurm.root, .cache holds images and data, and each Speedrun its own ledger",
        in_pods="free some of the cache volume: .cache has environments and data, speedruns each Speedrun's own; "
        "without a volume (spec.pods.cacheVolumeClaim) it is the node's disk",
        signs=(sign("No space left on device"), sign("Disk quota exceeded")),
        infrastructure=True,
    ),
    Rule(
        "HFRateLimit",
        "Hugging Face limits downloads: anonymous ones by address, so that all jobs of the cluster share the limit",
        "it is tried again after ten minutes; a token of huggingface.co as the variable HF_TOKEN raises the limit",
        signs=(
            sign("429 Client Error"),
            sign("429 Too Many Requests"),
        ),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=600,
    ),
    Rule(
        "HFAuth",
        "Hugging Face refuses the download: the token is wrong, or has no right to it",
        "give a token of huggingface.co that may read it as the variable HF_TOKEN",
        signs=(
            sign("401 Client Error", r"401 Client Error.*huggingface|huggingface.*401 Client Error"),
            sign("403 Client Error", r"403 Client Error.*huggingface|huggingface.*403 Client Error"),
            sign("GatedRepoError"),
            sign("RepositoryNotFoundError"),
            sign("Invalid user token"),
        ),
    ),
    Rule(
        "HFNetwork",
        "a download did not come through",
        "it is tried again; if it stays so, the nodes have no way to huggingface.co",
        signs=(
            sign("LocalEntryNotFoundError"),
            sign("Read timed out"),
            sign("Max retries exceeded"),
            sign("HfHubHTTPError"),
        ),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
        weight=Weight.GENERAL,
    ),
    Rule(
        "SourceRefused",
        "the code's repository is not there, or not open to this login",
        "correct the repository, or make it readable",
        signs=(
            sign("fatal: repository ", r"fatal: repository \S+ (not found|does not exist)"),
            sign("fatal: Authentication failed"),
            sign("fatal: could not read Username"),
        ),
    ),
    Rule(
        "RevisionMissing",
        "the repository has no such revision",
        "correct the revision; a commit must be reachable from a branch or a tag",
        signs=(
            sign("fatal: unable to read tree"),
            sign("fatal: reference is not a tree"),
            sign("error: pathspec", r"did not match any file"),
            sign("speedrun: UnknownRevision:"),
        ),
    ),
    Rule(
        "UnsupportedSource",
        "the code is not that of the recipe: what its layouts have at their root is not there",
        "correct spec.recipe.source; the log says what was looked for",
        signs=(sign("speedrun: UnsupportedSource:"),),
    ),
    Rule(
        "PatchFailed",
        "the patch could not be applied to the code",
        "make it again from the commit that status.plan names",
        signs=(sign("speedrun: the patch does not apply to"), sign("speedrun: the patch is not the one")),
    ),
    Rule(
        "SourceUnreachable",
        "the code could not be fetched",
        "it is tried again; if it stays so, the nodes have no way to the repository",
        signs=(sign("fatal: unable to access "), sign("fatal: unable to look up ")),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
    ),
    Rule(
        "PackagesUnreachable",
        "packages could not be fetched",
        "it is tried again; if it stays so, the nodes have no way to the package mirror",
        signs=(
            sign("E: Unable to fetch"),
            sign("E: Failed to fetch"),
            sign("Could not fetch URL"),
            sign("NewConnectionError", r"^(?!.*huggingface).*NewConnectionError"),
        ),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
    ),
    Rule(
        "PackageMissing",
        "a package that the container's build asks for is not to be had",
        "correct the requirements; the same build would fail again",
        signs=(
            sign("ERROR: No matching distribution found"),
            sign("ERROR: Could not find a version"),
            sign("E: Unable to locate package"),
        ),
    ),
    Rule(
        "NetworkDown",
        "the node could not resolve a name",
        "it is tried again; if it stays so, the nodes have no way out",
        signs=(
            sign("Could not resolve host"),
            sign("Temporary failure in name resolution"),
        ),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
        weight=Weight.GENERAL,
    ),
    Rule(
        "DataMissing",
        "the training data is not there, or not whole",
        "it is fetched again; a file that stays broken must be removed from .cache below slurm.root",
        in_pods="it is fetched again; a file that stays broken must be removed from .cache/data of the cache volume",
        signs=(
            sign("No files found for pattern:"),
            sign("magic number mismatch in the data .bin file"),
            sign("number of tokens read does not match header"),
            sign("FileNotFoundError", r"FileNotFoundError: .*fineweb"),
        ),
        retry=Retry.LIMITED,
    ),
)
