"""Where things are in a pod, and the words by which its containers and the operator understand each other."""

from __future__ import annotations

from speedrun_operator.api.names import GROUP
from speedrun_operator.planning import POD_CACHE

CACHE = POD_CACHE
PACKAGE = "/package/package.tar.gz"
PATCH_FOLDER, PATCH_FILE = "/patch", "patch.diff"
PATCH = f"{PATCH_FOLDER}/{PATCH_FILE}"
TRAIN = "train"
GUESS_LABEL = f"{GROUP}/gpu-type"  # of a pod whose nodes' labels were only likely ones, and why
UNREAD, UNSEEN = "guessed-unread", "guessed-unseen"
MISSING_BUILD_STEPS = 78
SAID = "/dev/termination-log"  # what a container writes there, the pod's status shows
LACKS = "speedrun: the image lacks "
