"""The command line: run, check, cache, detach, clusters, kubeconfig, render, crd."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from speedrun_operator import __version__
from speedrun_operator.api.names import API_VERSION, KIND, NAME_LIMIT, Identity, is_object_name
from speedrun_operator.api.resource import explain
from speedrun_operator.api.schema import crd_yaml
from speedrun_operator.api.spec import Backend, Spec
from speedrun_operator.backends.pods import manifest
from speedrun_operator.backends.pods.gpus import Wanted, guessed
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.backends.slurm import script
from speedrun_operator.planning import FIRST_ARM, Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.settings import Settings, SettingsFault, load

OK, FAILED, USAGE = 0, 1, 2
NOT_READ = 141  # as a shell reports SIGPIPE
PLATFORM_FLAGS = ("organization", "cluster")
WANTS = {"clusters": ("url", "organization"), "kubeconfig": ("url", "organization", "cluster")}
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
WITH_SETTINGS = {
    "run": "watch Speedruns and run them; ends cleanly on SIGTERM and Ctrl-C",
    "check": "look at platform, API server, CRD, rights, login and Slurm, and say what to do about each; exit code 1 "
    "if something is wrong",
    "cache": "list what lies in the shared cache, or prune it; nothing that a live run uses is touched",
    "detach": "take the operator's finalizer off all Speedruns, so that they can be deleted without it; jobs go on. "
    "Its Deployment, if deployment.name says one, is scaled to nothing first",
    "clusters": "list the organization's clusters of the Platform API with their readiness",
    "kubeconfig": "write a cluster's kubeconfig (mode 0600), fetched from the Platform API",
    "render": "print the plan and the batch script or pod of a Speedrun; needs no cluster",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_READ


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    known, rest = parser.parse_known_args(arguments)
    if known.command in ("crd",) and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if known.command == "crd":
        sys.stdout.write(crd_yaml())
        return OK
    named = [f"--platform.{each}={getattr(known, each)}" for each in PLATFORM_FLAGS if getattr(known, each, None)]
    try:
        settings = load([*named, *rest], known.config, _parser_of(known.command))
    except SettingsFault as fault:
        print(f"speedrun-operator: {fault}", file=sys.stderr)
        return USAGE
    if known.command in WANTS and (missing := [each for each in WANTS[known.command] if not _platform(settings, each)]):
        parser.error(f"{known.command} needs {', '.join(f'platform.{each}' for each in missing)}; see --help")
    if known.command == "render" and not known.file:
        parser.error("render needs -f FILE (- reads standard input)")
    if known.command == "cache" and known.action is None:
        parser.error("cache needs an action: list or prune")
    if known.command == "render":
        return _render(known.file, settings)
    return _long_running(known, settings)


def _platform(settings: Settings, name: str) -> str:
    return str(getattr(settings.platform, name))


def _long_running(known: argparse.Namespace, settings: Settings) -> int:
    try:
        if known.command in WANTS:
            from speedrun_operator import cli_platform

            if known.command == "clusters":
                return asyncio.run(cli_platform.clusters(settings.platform))
            return asyncio.run(cli_platform.write_kubeconfig(settings.platform, known.output, known.merge))
        # Kopf, the Kubernetes client and asyncssh take half a second to import: `crd` and `render` do without.
        from speedrun_operator import caches, check, service
        from speedrun_operator.detach import detach

        if known.command == "cache":
            prune = caches.Prune(
                known.max_gib, known.older_than_days, known.ledgers_older_than_days, known.dry_run, known.offline
            )
            return asyncio.run(caches.run(known.action, prune, settings))
        if known.command == "detach":
            return asyncio.run(detach(settings))
        if known.command == "check":
            return asyncio.run(check.check(settings))
        return asyncio.run(service.run(settings))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="speedrun-operator", description="Runs Speedrun resources as Slurm jobs and reports their results."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in WITH_SETTINGS.items():
        # Its --help is `_parser_of`'s, which knows the settings too.
        _own_flags(commands.add_parser(name, help=text, add_help=False, allow_abbrev=False), name)
    commands.add_parser("crd", help="print the CustomResourceDefinition")
    return parser


def _parser_of(command: str) -> argparse.ArgumentParser:
    """What `load` adds the settings' flags to."""
    parser = argparse.ArgumentParser(
        prog=f"speedrun-operator {command}",
        usage=f"speedrun-operator {command} [options]",
        description=f"{WITH_SETTINGS[command]}.",
        allow_abbrev=False,
    )
    _own_flags(parser, command)
    return parser


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _own_flags(parser: argparse.ArgumentParser, command: str) -> None:
    if command == "cache":
        parser.add_argument("action", choices=["list", "prune"], nargs="?", help="what to do")
        parser.add_argument(
            "--max-gib", type=_number, metavar="N", help="prune: what was used least lately, down to N GiB in all"
        )
        parser.add_argument(
            "--older-than-days",
            type=_number,
            metavar="N",
            help="prune: what was not used for N days, whatever the size",
        )
        parser.add_argument(
            "--ledgers-older-than-days", type=_number, metavar="N", help="prune: ledgers of jobs that ended, too"
        )
        parser.add_argument("--dry-run", action="store_true", help="prune: say what would go, and remove nothing")
        parser.add_argument("--offline", action="store_true", help="do not ask the API server what live Speedruns want")
    parser.add_argument("--config", metavar="FILE", help="settings as YAML (also SPEEDRUN_CONFIG)")
    if command != "render":
        parser.add_argument("--organization", metavar="ORG", help="its id on the platform (--platform.organization)")
    if command not in ("render", "clusters"):
        parser.add_argument("--cluster", metavar="CLUSTER", help="its id on the platform (--platform.cluster)")
    if command == "kubeconfig":
        parser.add_argument("-o", "--output", metavar="FILE", default="", help="file (default: kubeconfig-CLUSTER)")
        parser.add_argument(
            "--merge", action="store_true", help="into FILE, KUBECONFIG or ~/.kube/config, beside what is there"
        )
    if command == "render":
        parser.add_argument("-f", "--file", metavar="FILE", default="", help="Speedruns as YAML; - is standard input")


def _render(path: str, settings: Settings) -> int:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        documents = [each for each in yaml.safe_load_all(text) if each]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        print(f"speedrun-operator: {path}: {error}", file=sys.stderr)
        return FAILED
    if not documents:
        print(f"speedrun-operator: {path}: holds no Speedrun", file=sys.stderr)
        return FAILED
    code = OK
    for document in documents:
        code = max(code, _render_one(path, document, settings))
    return code


def _render_one(path: str, document: object, settings: Settings) -> int:
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        print(f"speedrun-operator: {path}: not a {API_VERSION} {KIND}", file=sys.stderr)
        return FAILED
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    identity = Identity(str(metadata.get("namespace", "default")), str(metadata.get("name", "")), UNKNOWN_UID)
    for field, value in (("namespace", identity.namespace), ("name", identity.name)):
        if not is_object_name(value):
            print(
                f"speedrun-operator: {path}: metadata.{field}: must be lower-case letters, digits, - and ., "
                f"at most {NAME_LIMIT} of them, not {value!r}",
                file=sys.stderr,
            )
            return FAILED
    try:
        spec = Spec.model_validate(document.get("spec") or {})
    except ValidationError as error:
        print(f"speedrun-operator: {path}: {explain(error)}", file=sys.stderr)
        return FAILED
    site = Site(
        gpu_partition=settings.slurm.gpu_partition,
        partition=settings.slurm.partition,
        pod_image=settings.pods.image or "IMAGE",
    )
    planned = plan(spec, shipped(), site)
    if isinstance(planned, Refusal):
        print(f"speedrun-operator: {path}: {planned.reason}: {planned.message}", file=sys.stderr)
        return FAILED
    first = range(min(spec.runs, spec.runs_per_allocation))
    planned = planned.for_runs([(index, FIRST_ARM) for index in first])
    _print_plan(identity, planned, settings, pods=spec.backend is Backend.PODS)
    return OK


def _print_plan(identity: Identity, planned: RunPlan, settings: Settings, *, pods: bool) -> None:
    cluster = settings.cluster_id or "CLUSTER"
    name = identity.job_name(cluster, 0)
    summary = planned.summary().model_dump(mode="json", by_alias=True, exclude_none=True)
    print(f"# Plan of {identity}")
    print("".join(f"#   {line}\n" for line in yaml.safe_dump(summary, sort_keys=False).splitlines()), end="")
    if pods:
        site = PodSite.of(settings.pods)
        wanted = Wanted(guessed(planned.gpu_type, site.gpu_label_keys) if planned.gpu_type else ())
        body = manifest.pod(planned, identity, 0, name=name, cluster=cluster, site=site, gpus=wanted)
        print(yaml.safe_dump(body, sort_keys=False, width=110), end="")
        return
    arguments = " ".join(script.sbatch_arguments(planned, identity, name))
    if planned.gpu_count and not planned.partition:
        print("# The partition is chosen when it is submitted, by the GPUs that the cluster has.")
    if planned.source and not planned.source.commit:
        print("# The code is looked up when the Speedrun is admitted; the script then has the commit.")
    print(f"# sbatch {arguments}")
    print(script.render(planned, identity, 0, settings.slurm.root, settings.slurm.python), end="")


if __name__ == "__main__":
    raise SystemExit(main())
