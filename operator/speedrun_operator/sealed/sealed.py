"""The contents that are read when an allocation is submitted, and forgotten once they are sent."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_VALUE = 64 * 1024  # bytes; Linux takes 128 KiB in one variable, name and all
MOST_PATCH = 900 * 1024  # bytes; a ConfigMap holds 1 MiB with its names and manifest


@dataclass(frozen=True, slots=True)
class Sealed:
    """`environment`: variables whose values are secret. `git`: a token, user:token or private key, or empty.

    `registry`: the user's name, and the credentials as enroot reads them (netrc); None without.
    """

    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    git: str = field(default="", repr=False)
    registry: tuple[str, str] | None = field(default=None, repr=False)
    patch: bytes = field(default=b"", repr=False)

    @property
    def secret(self) -> bool:
        """Whether there is more than the patch."""
        return bool(self.environment or self.git or self.registry)


class Unusable(ValueError):
    """A secret that cannot be used as it is. The message says why, and never quotes it."""


def text_of(value: bytes) -> str:
    """A secret as the value of a variable. Raises Unusable."""
    if len(value) > MOST_VALUE:
        raise Unusable(f"holds {len(value)} bytes; a variable takes at most {MOST_VALUE}")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Unusable("is no text in UTF-8") from None
    if "\0" in text:
        raise Unusable("holds a NUL byte, which no variable can")
    return text


def git_secret(value: bytes, repository: str) -> str:
    """A token, user:token or private key for git. Raises Unusable where it does not fit the repository."""
    text = text_of(value).strip()
    is_key = "PRIVATE KEY-----" in text
    if not text:
        raise Unusable("is empty")
    if "ENCRYPTED PRIVATE KEY-----" in text:
        raise Unusable("is a private key with a passphrase; it must be without one")
    if repository.startswith("https://"):
        if is_key:
            raise Unusable("is a private SSH key, but the repository is of https://: put a token there")
        if any(character.isspace() for character in text):
            raise Unusable("holds white space: a token, or user:token, is one word")
    elif not is_key:
        raise Unusable("is no private SSH key, which a repository by SSH needs")
    return text
