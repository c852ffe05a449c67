"""The SSH connection to a login service: framed commands, and failures that say whether the command ran.

Nothing of Slurm is known here, and no other package knows of SSH.
"""

from .command import Completed
from .errors import LoginError, NotRun, OutcomeUnknown, Reason
from .login import Health, Login
from .target import LoginTarget

__all__ = ["Completed", "Health", "Login", "LoginError", "LoginTarget", "NotRun", "OutcomeUnknown", "Reason"]
