"""Rules: what Slurm does to jobs and steps, in the words of slurmstepd and srun."""

from __future__ import annotations

from speedrun_operator.api.phases import Reason
from speedrun_operator.diagnosis.rule import Retry, Rule, Weight, sign

RULES = (
    Rule(
        Reason.TIME_LIMIT.value,
        "the job reached its time limit",
        "raise spec.timeLimitSeconds; finished steps are skipped the next time",
        signs=(sign("DUE TO TIME LIMIT"),),
        ends=(Reason.TIME_LIMIT.value,),
    ),
    Rule(
        Reason.PREEMPTED.value,
        "the job was preempted by one of higher priority",
        "a spec.slurm.qos that is not preempted helps",
        signs=(sign("DUE TO PREEMPTION"),),
        ends=(Reason.PREEMPTED.value,),
        infrastructure=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        Reason.NODE_FAILURE.value,
        "the node failed",
        "if the same node fails again, name it in spec.slurm.exclude",
        signs=(sign("DUE TO NODE FAILURE"), sign("error: Node failure on ")),
        ends=(Reason.NODE_FAILURE.value,),
        infrastructure=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        "Requeued",
        "the job was put back into the queue",
        "the operator runs it again by itself, so jobs need not be requeued by hand",
        signs=(sign("DUE TO JOB REQUEUE"),),
        infrastructure=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        "HardwareMemory",
        "the node's memory has an uncorrectable error",
        "tell the cluster's administrator; the next job keeps off the node where there is another",
        signs=(sign("UNCORRECTABLE MEMORY ERROR AT"),),
        infrastructure=True,
        avoids=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        Reason.NODES_RESTARTED.value,
        "the cluster's nodes restarted, as they do when somebody gains or loses SSH access (a first or last key)",
        "nothing; it is run again once they are back, and sinfo shows them idle",
        signs=(
            sign("Unable to create step for job", r"already completing or completed|Required node not available"),
            # Nodes that are busy with the step before, or with their prolog, are so on any day.
            sign("step creation temporarily disabled, retrying", r"retrying \(Required node not available"),
            sign("Unable to confirm allocation for job", r"Unable to contact slurm controller"),
            sign("Expired or invalid job "),
            sign("Task launch for StepId=", r"failed on node"),
            sign("launch failed: Plugin initialization failed"),
        ),
        ends=(Reason.NODES_RESTARTED.value,),
        infrastructure=True,
        retry=Retry.FREE,
        wait_seconds=180,
    ),
    Rule(
        "StepRefused",
        "Slurm has no room in the job for one of its steps",
        "see the resources in spec.slurm and in the recipe; the same job would fail again",
        signs=(
            sign(
                "Unable to create step for job",
                r"More processors requested|Memory required by task|Requested node configuration|"
                r"[Ii]nvalid generic resource",
            ),
        ),
    ),
    Rule(
        Reason.OUT_OF_MEMORY.value,
        "the job used more memory than it was given",
        "run it on a node with more memory, or with fewer processes",
        signs=(
            sign("oom", r"Detected \d+ oom[-_]kill event"),
            sign("Out Of Memory", r"task \d+: Out Of Memory"),
        ),
        ends=(Reason.OUT_OF_MEMORY.value,),
    ),
    Rule(
        Reason.LAUNCH_FAILED.value,
        "Slurm could not launch the job on its node",
        "if the same node fails again, name it in spec.slurm.exclude",
        ends=(Reason.LAUNCH_FAILED.value,),
        infrastructure=True,
        retry=Retry.LIMITED,
    ),
    Rule(
        Reason.CANCELLED.value,
        "the job was cancelled",
        "somebody ran scancel or Slurm's administrator did; delete the Speedrun and create it again to run it again",
        signs=(sign("CANCELLED AT", r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*"),),
        ends=(Reason.CANCELLED.value,),
    ),
    Rule(
        "StorageUnwritable",
        "the node cannot write to the ledger's directory",
        "slurm.root must be on a file system that every node shares",
        in_pods="the cache volume must let the user of the setting pods.user_id write",
        signs=(sign("speedrun: cannot write to "),),
        infrastructure=True,
        retry=Retry.LIMITED,
        wait_seconds=60,
    ),
    Rule(
        Reason.JOB_FAILED.value,
        "the program failed",
        "the log says why",
        signs=(
            sign("ChildFailedError"),
            sign("Exited with exit code", r"task \d+: Exited with exit code \d+"),
            sign("Failed to invoke spank plugin stack"),
            sign("FAILED (non-zero exit code or other failure mode)"),
            sign("DUE TO TASK FAILURE"),
        ),
        weight=Weight.WRAPPER,
    ),
)
