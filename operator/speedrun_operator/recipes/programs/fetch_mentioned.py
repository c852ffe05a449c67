"""fetch_mentioned.py [--load] FILE: fetch the kernels and tokenizers that the lines of FILE name.

Each line is a call as the code has it, `get_kernel("owner/name", version=1)` or `tiktoken.get_encoding("gpt2")`; its
arguments must be literals. A kernel must have a build for the torch and CUDA that are installed here. Without --load a
machine without a GPU will do: what was fetched need not load there.
"""

import ast
import glob
import os
import sys


def call(line):
    """(function, arguments, named arguments) of a call, or None where it is none with literals alone."""
    try:
        node = ast.parse(line.strip(), mode="eval").body
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        named = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
        return name, [ast.literal_eval(each) for each in node.args], named
    except (AttributeError, SyntaxError, ValueError):
        return None


def builds(repository):
    """Names of the kernel's builds that were fetched."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = [os.environ.get(name) for name in ("HF_KERNELS_CACHE", "KERNELS_CACHE")] + [HF_HUB_CACHE]
    name = repository.replace("/", "--")
    found = [glob.glob(f"{each}/*--{name}/snapshots/*/build/*/") for each in folders if each]
    return sorted({os.path.basename(path.rstrip("/")) for paths in found for path in paths})


def kernel(arguments, named, load):
    import torch
    from kernels import get_kernel

    fault = None
    try:
        get_kernel(*arguments, **named)
    except Exception as error:
        fault = error
    repository = str(arguments[0] if arguments else named["repo_id"])
    version, cuda = "".join(torch.__version__.split(".")[:2]), (torch.version.cuda or "").replace(".", "")
    fits = [each for each in builds(repository) if "universal" in each or "noarch" in each or f"torch{version}" in each]
    if fault is not None and (load or not fits):
        raise fault
    if not fits:
        raise SystemExit(f"{repository}: no build for torch {torch.__version__} was fetched: {builds(repository)}")
    if not load and cuda and not any(f"cu{cuda}" in each or "cu" not in each for each in fits):
        raise SystemExit(f"{repository}: no build for CUDA {torch.version.cuda} was fetched: {fits}")
    print(f"{repository}: {', '.join(fits)}", flush=True)


def main(words):
    load = "--load" in words
    with open(words[-1]) as file:
        calls = [found for line in file if (found := call(line))]
    run = f"run={os.environ['SPEEDRUN_RUN']} " if os.environ.get("SPEEDRUN_RUN") else ""
    for number, (name, arguments, named) in enumerate(calls):
        if not load:
            print(f"\nSPEEDRUN {run}stage=downloads progress done={number} total={len(calls)} unit=items", flush=True)
        if name == "get_kernel":
            kernel(arguments, named, load)
        elif name == "get_encoding":
            import tiktoken

            print(f"tiktoken: {tiktoken.get_encoding(*arguments, **named)}", flush=True)


main(sys.argv[1:])
