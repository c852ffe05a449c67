"""What sbatch's error texts prove: that the job is certainly not there, for good or for now, or nothing at all. Data.

The texts are those of Slurm's src/common/slurm_errno.c and src/sbatch, looked for anywhere in what sbatch printed. Its
exit code proves nothing. A text on no list proves nothing either: the submission's outcome is then unknown.
"""

from __future__ import annotations

# The request may have reached the controller. Looked for first: sbatch prints notes of its earlier tries, too.
UNKNOWN = (
    "Socket timed out",
    "(receive failure)",
    "(shutdown failure)",
    "Message receive failure",
    "Transport endpoint is not connected",
    "Zero Bytes were transmitted or received",
    "I/O error writing script/environment to file",
)

# Only another spec helps.
REJECTED = (
    "Invalid partition name specified",
    "No partition specified or system default partition",
    "Requested nodes not in this partition",
    "User's group not permitted to use this partition",
    "Invalid account or account/partition combination specified",
    "Invalid qos specification",
    "Invalid wckey specification",
    "Invalid license specification",
    "Job violates accounting/QOS policy",
    "Requested time limit is invalid",
    "Time limit specification required, but not provided",
    "Node count specification invalid",
    "invalid number of",
    "Task count specification invalid",
    "CPU count specification invalid",
    "Requested node configuration is not available",
    "More processors requested than permitted",
    "Memory required by task is not available",
    "Invalid generic resource (gres) specification",
    "Invalid GRES specification",
    "Invalid Trackable RESource (TRES) specification",
    "Invalid feature specification",
    "Invalid node name specified",
    "Job dependency problem",
    "Requested reservation is invalid",
    "Reservation is invalid",
    "Access denied to requested reservation",
    "Access/permission denied",
    "Invalid user id",
    "Pathname of a file, directory or other parameter too long",
    "does not look like a batch script",
    "Batch script is empty",
    "Batch script contains",
    "unrecognized option",
    "Invalid --",
    "invalid option",
)

# The same may go through later; so may others meanwhile.
BUSY = (
    "Required partition not available (inactive or drain)",
    "Requested partition configuration not available now",
    "Requested reservation not usable now",
    "Munge encode failed",
    "command not found",
)

# The same may go through later, and so long no other does.
OVERLOADED = (
    "Rate limit exceeded",
    "RPC rate limit",
    "MaxJobCount limit reached",
    "Unable to create job record, try again",
    "System submissions disabled",
    "Unable to contact slurm controller (connect failure)",
    "Slurm backup controller in standby mode",
    "Controller is in standby mode",
    "Unable to process configuration file",
)

# Slurm has too much to do: it is to be asked less often.
LIMITS = (
    "Rate limit exceeded",
    "RPC rate limit",
    "RPC limit",
    "Socket timed out",
)


def is_limited(text: str) -> bool:
    """Whether what a program of Slurm printed asks for fewer requests."""
    lower = text.lower()
    return any(each.lower() in lower for each in LIMITS)
