"""Which cache entries a plan's runs need, in the order in which they can be made. Pure.

The key of an image is known once its code is there: the entry of the code says what the build would read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation import keys

MIB = 1024 * 1024
CODE_MIB = 2048  # a checkout of modded-nanogpt has 250 MiB, most of it logs of records


class Kind(StrEnum):
    """A kind of cache entry, and the stage that makes it."""

    CODE = "code"
    IMAGE = "image"
    DATA = "data"
    DOWNLOADS = "downloads"


@dataclass(frozen=True, slots=True)
class Need:
    """One entry: `after` are the kinds whose entries its job reads, `bytes` what it may take on disk."""

    kind: Kind
    key: str
    after: tuple[Kind, ...] = ()
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def kinds(plan: RunPlan) -> tuple[Kind, ...]:
    """The kinds of entry that the plan has, whether their keys are known yet or not."""
    there = {
        Kind.CODE: plan.source is not None,
        Kind.IMAGE: plan.container is not None,
        Kind.DATA: plan.data is not None,
        Kind.DOWNLOADS: plan.downloads is not None,
    }
    return tuple(kind for kind in Kind if there[kind])


def needs(plan: RunPlan, inputs: Mapping[str, str] | None) -> tuple[Need, ...]:
    """The needs whose keys are known. `inputs`: what the entry of the code says; None while it is not there."""
    code = _code(plan)
    image = _image(plan, inputs)
    found = [code, image, _data(plan), _downloads(plan, image, inputs)]
    return tuple(each for each in found if each is not None)


def _code(plan: RunPlan) -> Need | None:
    if plan.source is None:
        return None
    key = keys.code(plan.source.key, keys.inputs_of(plan.container, plan.downloads))
    return Need(Kind.CODE, key, bytes=CODE_MIB * MIB)


def _image(plan: RunPlan, inputs: Mapping[str, str] | None) -> Need | None:
    container = plan.container
    if container is None:
        return None
    read = _told(plan, inputs, "files", bool(container.inputs))
    if read is None:
        return None
    after = (Kind.CODE,) if container.inputs else ()
    return Need(Kind.IMAGE, keys.join(keys.image_base(container), read), after, container.size_mib * MIB)


def _data(plan: RunPlan) -> Need | None:
    if plan.data is None:
        return None
    after = [Kind.CODE] if plan.source is not None else []
    after += [Kind.IMAGE] if plan.data.container else []
    size = len(plan.data_files) * plan.data.file_mib * MIB
    return Need(Kind.DATA, keys.data(plan.data, plan.data_files), tuple(after), size)


def _downloads(plan: RunPlan, image: Need | None, inputs: Mapping[str, str] | None) -> Need | None:
    downloads = plan.downloads
    if downloads is None or (downloads.container and image is None):
        return None
    named = _told(plan, inputs, "mentions", downloads.mentions is not None)
    if named is None:
        return None
    key = keys.join(keys.downloads_base(downloads), image.key if image else "", named)
    after = [Kind.CODE] if downloads.mentions else []
    after += [Kind.IMAGE] if downloads.container else []
    return Need(Kind.DOWNLOADS, key, tuple(after), downloads.size_mib * MIB)


def _told(plan: RunPlan, inputs: Mapping[str, str] | None, name: str, wanted: bool) -> str | None:
    """What the code tells under `name`; empty where it tells nothing, None where it is not known yet.

    A job's script takes what is not told for empty, too.
    """
    if not wanted or plan.source is None:
        return ""
    return inputs.get(name, "") if inputs is not None else None
