"""What the documents tell people to open and to type exists: links, files, make targets, commands and their flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from speedrun_operator import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "charts").rglob("*.md"))]
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=[str(each.relative_to(ROOT)) for each in DOCUMENTS])
# Placeholders, redirections and pipes end what is looked at.
END = re.compile(r"\s+(?:#|>|\||2>|&&|;).*|\s*\.\.\.")


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The arguments of each call of `program` in code, as a shell splits them; continued lines are joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", joined, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", joined)
    for line in lines:
        found = re.match(rf"(?:\$ |demo: )?(?:[A-Z_]+=\S+ )*(?:\S*/)?{program}((?: .*)?)$", line.strip())
        if found and (words := END.sub("", found[1])) and not words.startswith(" |"):
            yield shlex.split(words)


def anchors(document: Path) -> set[str]:
    """Of a document's headings, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


@each_document
def test_files_that_are_named_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/.])(?:examples|bench|crds|charts|docs|scripts)/[\w./-]+\.\w+", text))
    missing = [each for each in named if not (ROOT / each).exists()]
    assert missing == []


@each_document
def test_tests_that_are_named_are_there(document: Path) -> None:
    for path, _, name in re.findall(r"\b(tests/[\w/]+\.py)(::(\w+))?", document.read_text(encoding="utf-8")):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


@each_document
def test_make_has_the_targets(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = {words[0] for words in commands(document.read_text(encoding="utf-8"), "make") if words}
    assert asked <= targets


@cache
def flags_of(command: str) -> str:
    """The command's help, with all its flags."""
    lines: list[str] = []

    def keep(text: str, *_: object, **__: object) -> int:
        lines.append(text)
        return len(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", keep)
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
    assert ended.value.code == 0, command
    return "".join(lines)


@each_document
def test_the_operators_commands_have_the_flags(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8"), "speedrun-operator"):
        if words[0].startswith("-"):
            assert words[0] in ("--help", "--version"), words
            continue
        known = flags_of(words[0])
        for word in words[1:]:
            if word.startswith("--"):
                flag = re.escape(word.partition("=")[0])
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", known), f"{' '.join(words)}: no flag {word}"


def test_commands_are_found() -> None:
    text = "`make demo`\n```\n$ A=1 .venv/bin/make test \\\n  x | head\nmakes y\n```\n"
    assert list(commands(text, "make")) == [["test", "x"], ["demo"]]
