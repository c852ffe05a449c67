"""Names of container images as Pyxis wants them."""

from __future__ import annotations


def pyxis_reference(image: str) -> str:
    """`nvcr.io/nvidia/pytorch:24.10-py3` → `nvcr.io#nvidia/pytorch:24.10-py3`.

    What stands before a `/` is an organization on Docker Hub to enroot.

    A registry is told from an organization as Docker does it: by a dot or a port in it, or as `localhost`. Names with a
    `#`, paths of image files and Docker Hub's own names stay as they are, and so does a user before an `@`.
    """
    scheme, separator, rest = image.rpartition("://")
    if rest.startswith(("/", "./")) or "#" in rest:
        return image
    user, at, name = rest.partition("@") if "@" in rest.partition("/")[0] else ("", "", rest)
    registry, slash, path = name.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        return image
    return f"{scheme}{separator}{user}{at}{registry}#{path}"
