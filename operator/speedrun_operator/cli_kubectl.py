"""`kubectl speedrun run`: applies a Speedrun, with what differs in the local checkout as its patch. A kubectl plugin.

Works through kubectl and git as their user has set them up; needs nothing of the operator's but the resource.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from speedrun_operator import __version__
from speedrun_operator.api.names import API_VERSION, KIND, is_object_name
from speedrun_operator.api.resource import explain
from speedrun_operator.api.spec import Spec
from speedrun_operator.checkout import Fault, Patch, local_patch

OK, FAILED, USAGE = 0, 1, 2
MANAGER = "kubectl-speedrun"
KEY = "diff"
EPILOG = """\
examples:
  kubectl speedrun run -f speedrun.yaml
  kubectl speedrun run -f speedrun.yaml --diff       # in your checkout: runs it as it is now, uncommitted changes too
"""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with the flags that say which cluster and namespace."""

    flags: tuple[str, ...]

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Its standard output. Raises Fault with what it said."""
        command = ["kubectl", *arguments, *self.flags]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Fault("there is no kubectl in PATH; install it first") from None
        if done.returncode != 0:
            raise Fault(done.stderr.strip() or f"kubectl {arguments[0]} ended with exit code {done.returncode}")
        return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    flags = [
        f"--{name}={value}" for name in ("namespace", "context", "kubeconfig") if (value := getattr(arguments, name))
    ]
    try:
        _run(arguments.file, Kubectl(tuple(flags)), with_diff=arguments.diff, checkout=arguments.checkout)
    except Fault as fault:
        print(f"kubectl speedrun: {fault}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl speedrun", description="Runs training speedruns.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="apply a Speedrun, with the local changes as its patch if asked for",
        description="Applies a Speedrun. With --diff it runs the code of the local checkout: the newest commit that is "
        "on the remote, and what differs from it (commits that are not pushed, and changes that are not committed) as "
        "a patch in a ConfigMap that goes with the Speedrun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("-f", "--file", required=True, metavar="FILE", help="a Speedrun as YAML; - is standard input")
    run.add_argument("--diff", action="store_true", help="run the local checkout as it is now")
    run.add_argument("--checkout", default=".", metavar="DIR", help="where the checkout is (default: here)")
    run.add_argument("-n", "--namespace", metavar="NAME", help="as for kubectl")
    run.add_argument("--context", metavar="NAME", help="as for kubectl")
    run.add_argument("--kubeconfig", metavar="FILE", help="as for kubectl")
    return parser


def _run(file: str, kubectl: Kubectl, *, with_diff: bool, checkout: str) -> None:
    document = _document(file)
    name = document["metadata"]["name"]
    if namespace := document["metadata"].get("namespace"):
        kubectl = Kubectl((*kubectl.flags, f"--namespace={namespace}")) if not _named(kubectl) else kubectl
    if not with_diff:
        print(_applied(kubectl, document))
    else:
        source = document["spec"]["recipe"].setdefault("source", {})
        patch = local_patch(Path(checkout), source)
        _say(patch)
        holder = _config_map(name, patch)
        source |= {"repository": patch.repository, "revision": patch.base}
        source["patch"] = {"configMapRef": {"name": holder["metadata"]["name"], "key": KEY}}
        _checked(document)
        _apply_with_patch(kubectl, document, holder)
    where = " ".join(each for each in kubectl.flags)
    where = f" {where}" if where else ""
    print(f"follow it:   kubectl get speedrun {name} -w{where}")
    print(f"wait for it: kubectl wait --for=condition=Finished speedrun/{name} --timeout=2h{where}")
    print(f"if it waits: kubectl describe speedrun {name}{where}")


def _named(kubectl: Kubectl) -> bool:
    return any(each.startswith("--namespace=") for each in kubectl.flags)


def _document(file: str) -> dict[str, Any]:
    """The one Speedrun of the file, checked as far as that can be done here. Raises Fault."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        documents = [each for each in yaml.safe_load_all(text) if each]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Fault(f"{file}: {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Fault(f"{file}: must hold one Speedrun, not {len(documents)} documents; apply others with kubectl apply")
    document = documents[0]
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise Fault(f"{file}: is no Speedrun: apiVersion must be {API_VERSION} and kind {KIND}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not is_object_name(str(metadata.get("name", ""))):
        raise Fault(f"{file}: metadata.name: must be a DNS name, such as my-attempt")
    _checked(document, file)
    return document


def _checked(document: Mapping[str, Any], file: str = "with the patch") -> None:
    try:
        Spec.model_validate(document.get("spec") or {})
    except ValidationError as invalid:
        raise Fault(f"{file}: {explain(invalid)}") from invalid


def _config_map(name: str, patch: Patch) -> dict[str, Any]:
    """Named by its content, so that what a Speedrun was admitted with never changes under it."""
    digest = hashlib.sha256(patch.content).hexdigest()[:8]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-patch-{digest}"},
        "immutable": True,
        **patch.data(KEY),
    }


def _applied(kubectl: Kubectl, document: Mapping[str, Any]) -> str:
    try:
        return kubectl("apply", "-f", "-", stdin=json.dumps(document))
    except Fault as fault:
        name = document["metadata"]["name"]
        hint = f"; choose another metadata.name, or first: kubectl delete speedrun {name}"
        raise Fault(f"{fault}{hint if 'cannot be changed' in str(fault) else ''}") from fault


def _apply_with_patch(kubectl: Kubectl, document: dict[str, Any], holder: dict[str, Any]) -> None:
    """The patch first, so that the operator finds it; then the Speedrun; then the one belongs to the other."""
    ours = ("configmap", holder["metadata"]["name"])
    # Not client-side apply: that would keep the patch a second time, in an annotation with a limit of 256 KiB.
    kubectl("apply", "--server-side", f"--field-manager={MANAGER}", "-f", "-", stdin=json.dumps(holder))
    try:
        print(_applied(kubectl, document))
    except Fault:
        if not kubectl("get", *ours, "-o", "jsonpath={.metadata.ownerReferences}"):
            kubectl("delete", *ours)
        raise
    name = document["metadata"]["name"]
    uid = kubectl("get", "speedrun", name, "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid}
    kubectl("patch", *ours, "--type=merge", "-p", json.dumps({"metadata": {"ownerReferences": [owner]}}))


def _say(patch: Patch) -> None:
    print(f"code:        {patch.repository} at {patch.base}")
    print(f"patch:       {patch.summary}")
    if patch.untracked:
        more = f" and {len(patch.untracked) - 5} more" if len(patch.untracked) > 5 else ""
        left_out = f"{', '.join(patch.untracked[:5])}{more}"
        print(
            f"kubectl speedrun: git does not know {left_out}: not in the patch; `git add -N FILE` takes one in",
            file=sys.stderr,
        )


if __name__ == "__main__":
    raise SystemExit(main())
