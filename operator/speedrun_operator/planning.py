"""spec + recipe + site facts + resolved source → RunPlan. Pure.

A plan is everything that a backend needs to render a job, resolved and checked: no default is looked up later. What
cannot be planned is a Refusal, which names the field and says what to change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from speedrun_operator import variables
from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import Backend, KeyRef, PodOptions, SlurmOptions, Spec
from speedrun_operator.api.spec import Source as SourceSpec
from speedrun_operator.api.status import PlanSummary
from speedrun_operator.recipes.recipe import Container, Data, Downloads, Layout, Parameter, Recipe, Step
from speedrun_operator.sealed.sealed import Sealed
from speedrun_operator.source.resolved import Source, is_commit, wanted

FIRST_ARM = "A"
EACH_RUN = "$(RUN)"
POD_CACHE = "/cache"  # where pods see their cache volume


@dataclass(frozen=True)
class Refusal:
    """Why a spec cannot be planned. Only another spec heals it."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Later:
    """Why a plan cannot be submitted now; heals without an edit."""

    reason: str
    message: str


@dataclass(frozen=True)
class Site:
    """What the operator's settings say of the cluster.

    `gpu_partition` is the partition of GPU jobs that name none; empty: `placement` chooses one by what the cluster has.
    `partition`: that of other jobs; empty leaves the choice to Slurm. `pod_image`: of pods that name none.
    """

    gpu_partition: str = ""
    partition: str = ""
    pod_image: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an allocation: its variables, with $(RUN) and $(ARM) replaced."""

    index: int
    arm: str
    parameters: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunPlan:
    """One allocation's work, resolved. `time_limit_minutes` is wall time; memory is in MiB.

    `parameters` and `env` are as they were written; `runs` has them for each run. `gpu_types`: those that the recipe
    and the spec allow, the best first; none: any. `driver`: the oldest major version of NVIDIA's that will do.
    `usable_nodes`: how many nodes can run it, as far as that is known; `most_minutes`: the longest time limit that its
    partition takes, where that is known and there is one. `secret_env` are the names of variables whose
    values go another way than the script: in `sealed`, which is there only while it is submitted, or by `secret_refs`.
    `data_files`: the files that `data` must have. `layouts`: those that the code may have; `patch_ref` and `git_ref`:
    where the patch and the repository's secret are, for whoever fetches the code by itself. `avoid`: nodes that broke
    under earlier allocations.
    """

    recipe: str
    metric: str
    target: Decimal
    log_format: str
    gpu_type: str | None
    gpu_count: int
    exclusive: bool
    cpus: int
    memory_mib: int
    time_limit_minutes: int
    partition: str
    gpu_types: tuple[str, ...]
    driver: int | None
    slurm: SlurmOptions
    pods: PodOptions
    source: Source | None
    package: str | None
    container: Container | None
    environment: tuple[tuple[str, str], ...]
    parameters: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    stall_seconds: int
    declared: Mapping[str, Parameter]
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[str, ...] = ()
    secret_refs: tuple[tuple[str, KeyRef], ...] = ()
    usable_nodes: int | None = None
    most_minutes: int | None = None
    runs: tuple[PlannedRun, ...] = ()
    avoid: tuple[str, ...] = ()
    data: Data | None = None
    data_files: tuple[str, ...] = ()
    downloads: Downloads | None = None
    layouts: tuple[Layout, ...] = ()
    patch_ref: KeyRef | None = None
    git_ref: KeyRef | None = None
    compile_cache: bool = False
    telemetry_seconds: int = 0
    sealed: Sealed = field(default=Sealed(), repr=False, compare=False)

    @property
    def code_key(self) -> str | None:
        """Names the code by its content; None for a recipe without any of its own."""
        return self.source.key if self.source else None

    def for_runs(
        self, runs: Sequence[tuple[int, str]], time_limit_seconds: int | None = None, avoid: Sequence[str] = ()
    ) -> RunPlan:
        """The plan of an allocation with these runs (index, arm), a time limit of its own if it has one, and nodes to
        `avoid`: a job must not use them, as those of the spec; a pod does not where there is another."""
        minutes = self.time_limit_minutes if time_limit_seconds is None else math.ceil(time_limit_seconds / 60)
        exclude = [*self.slurm.exclude, *(node for node in avoid if node not in self.slurm.exclude)]
        return replace(
            self,
            time_limit_minutes=minutes,
            slurm=self.slurm.model_copy(update={"exclude": exclude}),
            avoid=tuple(avoid),
            runs=tuple(self._run(index, arm) for index, arm in runs),
        )

    def _run(self, index: int, arm: str) -> PlannedRun:
        return PlannedRun(
            index=index,
            arm=arm,
            parameters=tuple((name, _checked(self.declared[name], text, index, arm)) for name, text in self.parameters),
            environment=tuple((name, substitute(text, index, arm)) for name, text in self.env),
        )

    def summary(self) -> PlanSummary:
        return PlanSummary(
            recipe=self.recipe,
            commit=self.source.commit if self.source else None,
            source=self.source.summary() if self.source else None,
            metric=self.metric,
            target=float(self.target),
            gpu_type=self.gpu_type,
            gpu_count=self.gpu_count,
            time_limit_seconds=self.time_limit_minutes * 60,
            partition=self.partition or None,
            parameters=dict(self.parameters),
        )


def plan(spec: Spec, recipes: Mapping[str, Recipe], site: Site, source: Source | None = None) -> RunPlan | Refusal:
    """Resolve `spec` against its recipe. `source`: what its code came to; None where nobody has looked it up."""
    recipe = recipes.get(spec.recipe.name)
    if recipe is None:
        known = ", ".join(sorted(recipes))
        return Refusal(
            Reason.UNKNOWN_RECIPE, f"spec.recipe.name: no recipe is called {spec.recipe.name!r}; there are: {known}"
        )
    parameters = _parameters(spec, recipe)
    if isinstance(parameters, Refusal):
        return parameters
    if spec.recipe.source and recipe.repository is None:
        message = f"spec.recipe.source: recipe {recipe.name} has no repository that could be replaced; leave it out"
        return Refusal(Reason.UNSUPPORTED_SOURCE, message)
    gpus = _gpus(spec, recipe, source)
    if isinstance(gpus, Refusal):
        return gpus
    gpu_type, gpu_count = gpus
    if fault := variables.fault(spec.env):
        return Refusal(Reason.INVALID_SPEC, fault)
    if refused := _several_nodes(spec) or _pod_fault(spec, site):
        return refused
    try:
        data_files = recipe.data.names(dict(parameters)) if recipe.data else ()
    except ValueError as error:
        return Refusal(Reason.INVALID_PARAMETER, f"spec.recipe.parameters.{error}")
    asked = spec.recipe.source
    # Not `runs`, which may be raised: what status.plan says once must stay true.
    own = recipe.start_up_seconds + recipe.run_seconds * spec.runs_per_allocation
    seconds = spec.time_limit_seconds or own
    return RunPlan(
        recipe=recipe.name,
        metric=recipe.metric,
        target=spec.target if spec.target is not None else recipe.target,
        log_format=recipe.log_format,
        gpu_type=gpu_type,
        gpu_count=gpu_count,
        exclusive=recipe.exclusive,
        cpus=recipe.cpus,
        memory_mib=recipe.memory_mib,
        time_limit_minutes=math.ceil(seconds / 60),
        partition=spec.slurm.partition or (site.gpu_partition if gpu_count else site.partition),
        gpu_types=_gpu_types(spec, recipe, gpu_type),
        driver=recipe.gpus.driver,
        slurm=spec.slurm,
        pods=spec.pods.model_copy(update={"image": spec.pods.image or site.pod_image}),
        source=source or _asked_for(spec, recipe),
        package=recipe.package,
        container=recipe.container,
        environment=tuple(sorted(recipe.environment.items())),
        parameters=parameters,
        steps=recipe.steps,
        stall_seconds=recipe.stall_seconds,
        declared=recipe.parameters,
        env=tuple((each.name, each.value) for each in spec.env if each.value_from is None),
        secret_env=tuple(each.name for each in spec.env if each.value_from is not None),
        secret_refs=tuple(
            (each.name, each.value_from.secret_key_ref) for each in spec.env if each.value_from is not None
        ),
        data=recipe.data,
        data_files=data_files,
        downloads=recipe.downloads,
        layouts=recipe.layouts,
        patch_ref=asked.patch.config_map_ref if asked and asked.patch else None,
        git_ref=asked.secret_ref if asked else None,
        compile_cache=recipe.compile_cache,
        telemetry_seconds=spec.telemetry.period_seconds,
    )


def substitute(text: str, run: int, arm: str) -> str:
    """`text` with $(RUN) and $(ARM) replaced; $$(RUN) stays as $(RUN), as in a pod's env."""
    values = {"RUN": str(run), "ARM": arm}
    return re.sub(r"\$(\$?)\((RUN|ARM)\)", lambda found: f"$({found[2]})" if found[1] else values[found[2]], text)


def _asked_for(spec: Spec, recipe: Recipe) -> Source | None:
    """The code as the spec and the recipe name it."""
    asked = wanted(spec, recipe)
    if asked is None:
        return Source(recipe.repository, recipe.revision, recipe.revision) if recipe.repository else None
    commit = asked.revision if is_commit(asked.revision) else None
    return Source(asked.repository, asked.revision or None, commit, path=asked.path)


def _checked(parameter: Parameter, text: str, run: int, arm: str) -> str:
    return parameter.check(substitute(text, run, arm))


def _resolved(parameter: Parameter, value: int | str, runs: int) -> str:
    """The parameter's value as text, still with $(RUN) and $(ARM). Raises ValueError unless it fits in every run."""
    if isinstance(value, int) or not any(name in value for name in (EACH_RUN, "$(ARM)")):
        return _fitting(parameter, value)
    if parameter.type == "integer" and value != EACH_RUN:
        raise ValueError(f"must be a whole number, or {EACH_RUN} alone, not {value!r}")
    for run in range(runs):
        text = substitute(value, run, FIRST_ARM)
        try:
            parameter.check(text)
        except ValueError as error:
            raise ValueError(f"{error}, not {text!r} as in run {run}") from error
    return value


def _fitting(parameter: Parameter, value: int | str) -> str:
    try:
        return parameter.check(value)
    except ValueError as error:
        raise ValueError(f"{error}, not {value!r}") from error


def _pod_fault(spec: Spec, site: Site) -> Refusal | None:
    if spec.backend is not Backend.PODS:
        return None
    if fault := _pod_source_fault(spec.recipe.source):
        return Refusal(Reason.UNSUPPORTED_SOURCE, fault)
    if spec.pods.image or site.pod_image:
        return None
    message = "spec.pods.image: name an image; the operator has none of its own (setting pods.image)"
    return Refusal(Reason.INVALID_SPEC, message)


def _pod_source_fault(source: SourceSpec | None) -> str | None:
    """A pod sees nothing of the cluster's shared file systems but its cache volume."""
    if source is None:
        return None
    if source.path:
        return "spec.recipe.source.path: a pod sees no checkout; name a repository and a patch, or use backend Slurm"
    if source.repository.startswith("/") and not source.repository.startswith(f"{POD_CACHE}/"):
        return (
            f"spec.recipe.source.repository: a pod sees no file system but its cache volume at {POD_CACHE}; "
            "name a repository that it can fetch over the network, or use backend Slurm"
        )
    return None


def _parameters(spec: Spec, recipe: Recipe) -> tuple[tuple[str, str], ...] | Refusal:
    for name in spec.recipe.parameters:
        if name not in recipe.parameters:
            known = ", ".join(sorted(recipe.parameters)) or "none"
            return Refusal(
                Reason.INVALID_PARAMETER,
                f"spec.recipe.parameters.{name}: recipe {recipe.name} has no such parameter; it has: {known}",
            )
    resolved = []
    for name, parameter in recipe.parameters.items():
        value = spec.recipe.parameters.get(name, parameter.default)
        try:
            resolved.append((name, _resolved(parameter, value, spec.runs)))
        except ValueError as error:
            return Refusal(Reason.INVALID_PARAMETER, f"spec.recipe.parameters.{name}: {error}")
    return tuple(resolved)


def _gpus(spec: Spec, recipe: Recipe, source: Source | None) -> tuple[str | None, int] | Refusal:
    needs = recipe.gpus
    layout = next((each for each in recipe.layouts if source and each.name == source.layout), None)
    counts = layout.gpu_counts if layout and layout.gpu_counts else needs.counts
    count = spec.gpus.count if spec.gpus and spec.gpus.count is not None else counts[0]
    if count not in counts:
        fits = ", ".join(map(str, sorted(counts)))
        code = f" with code of the layout {layout.name!r} ({layout.root} at its root)" if layout else ""
        return Refusal(
            Reason.UNSUPPORTED_HARDWARE,
            f"spec.gpus.count: recipe {recipe.name}{code} runs on {fits} GPUs, not on {count}",
        )
    wanted = spec.gpus.type if spec.gpus and spec.gpus.type else None
    if count == 0 and wanted is None:
        return None, 0
    if not needs.types:
        return wanted, count
    if wanted is None:
        return needs.types[0], count
    for known in needs.types:
        if known.lower() == wanted.lower():
            return known, count
    fits = ", ".join(needs.types)
    return Refusal(Reason.UNSUPPORTED_HARDWARE, f"spec.gpus.type: recipe {recipe.name} runs on {fits}, not on {wanted}")


def _gpu_types(spec: Spec, recipe: Recipe, gpu_type: str | None) -> tuple[str, ...]:
    asked = spec.gpus.type if spec.gpus else None
    return recipe.gpus.types if asked is None else (gpu_type or asked,)


def _several_nodes(spec: Spec) -> Refusal | None:
    """A run is on one node, so that more than one that must be part of it can never be."""
    names = spec.slurm.node_list
    several = len(names) > 1 or any(re.search(r"\[[^]]*[,-]", name) for name in names)
    if not several:
        return None
    message = "spec.slurm.nodeList: a job runs on one node, so name one; spec.slurm.exclude keeps it off others"
    return Refusal(Reason.INVALID_SPEC, message)
