"""Why a job ended or waits: the backend's word and signs in the log → a rule with a reason and a remedy. Pure.

The rules are data, a file an area (`scheduler`, `containers`, `downloads`, `gpus`, `pods`). `diagnose` looks for them,
`pending` says what a queued job waits for, `refusals` what to do about a job that sbatch did not take.
"""

from speedrun_operator.diagnosis.diagnose import diagnose, for_pods, rule_of, sign_of
from speedrun_operator.diagnosis.rule import Retry, Rule, Sign, Weight

__all__ = ["Retry", "Rule", "Sign", "Weight", "diagnose", "for_pods", "rule_of", "sign_of"]
