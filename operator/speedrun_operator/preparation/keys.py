"""Names of cache entries: hashes of what goes into them, so that the same content has one entry. Pure.

A key is made of two parts: what the plan says, and what only the code tells (the files that an image's build reads, the
kernels that the code names), which the entry of the code has in its manifest. `join` is what the job's script computes
where it prepares by itself, so it is a hash of plain text.
"""

from __future__ import annotations

import hashlib

from speedrun_operator.recipes.recipe import Container, Data, Downloads

KEY_DIGITS = 16


def digest(*parts: str) -> str:
    """SHA-256 over the parts, each with its length, so that no two lists of parts are the same text."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def join(*parts: str) -> str:
    """A key: the first digits of `printf '%s\\n' PARTS | sha256sum`."""
    text = "".join(f"{part}\n" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def code(source: str, inputs: str) -> str:
    """The key of the code. `source` names it by its content; `inputs`: what its entry says of it (`inputs_of`)."""
    return join(digest("code", source, inputs))


def inputs_of(container: Container | None, downloads: Downloads | None) -> str:
    """What others want to know of the code, as text."""
    files = container.inputs if container else ()
    mentions = downloads.mentions if downloads else None
    return repr((files, (mentions.pattern, mentions.files) if mentions else None))


def image_base(container: Container) -> str:
    """What the plan alone says of an image: base image and build steps, and not how it is probed."""
    steps = [part for step in container.build for part in (step.kind, step.run)]
    return digest("image", container.base_image, *steps)


def data(data: Data, names: tuple[str, ...]) -> str:
    """The key of a data set with these files; how they are downloaded does not matter."""
    return join(digest("data", data.dataset, *names))


def downloads_base(downloads: Downloads) -> str:
    """What the plan alone says of the downloads."""
    variables = [part for item in sorted(downloads.environment.items()) for part in item]
    return digest("downloads", downloads.fetch, *variables)
