"""What the pages name is there: files, sections, commands and their flags, and as many of a thing as they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from fcaffe.cli import _load, gflags
from fcaffe.cli.commands import COMMANDS, TOOLS
from fcaffe.net import layer_types, registry
from fcaffe.plan.machine import MACHINES, Machine, machine_from

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "models").rglob("*.md"))]

# Files of users and of other projects.
FOREIGN = re.compile(
    r"(python|examples|Models|code|face_example)/|tools/(extra/|train|test_)|models/(VGGNet|pascal_voc)/|(script|solve|spatial_dropout|lenet)\.py$"
    r"|models/.*_(lmdb|\d+\.h5|iter_\d+\.\w+|)$"
)
OF_OTHER_PROGRAMS = {"--mpi", "--minutes", "--rules", "--peers", "--nets", "--batches", "--steps", "--download"}
WITHOUT_A_COMMAND = {"--help", "--version", "--flag", "--flagfile", "--fromenv", "--tryfromenv", "--undefok"}


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(page: Path) -> str:
    """The page without its Python."""
    text = page.read_text().replace("\\\n", "")
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def files() -> frozenset[str]:
    """All ends of the paths of this repository: parallel/exchange.py is one of fcaffe/parallel/exchange.py."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split() if listed.returncode == 0 else [str(f.relative_to(ROOT)) for f in ROOT.rglob("*")]
    whole = {part for name in names for part in (Path(name), *Path(name).parents)}
    return frozenset("/".join(path.parts[start:]) for path in whole for start in range(len(path.parts)))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_and_sections_exist(page: Path) -> None:
    text = text_of(page)
    named = re.findall(
        r"(?<![\w/.~$}-])((?:[\w.-]+/)*[\w-]+\.py|(?:scripts|tests|fcaffe|models|docs)/[\w./-]*\w)\b", text
    )
    assert [name for name in named if name not in files() and not FOREIGN.match(name)] == []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        file, _, section = link.partition("#")
        path = page.parent / file if file else page
        headings = re.findall(r"^#+ (.*)$", path.read_text() if path.suffix == ".md" else "", re.MULTILINE)
        sections = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert path.exists() and (not section or section in sections), link


@pytest.mark.parametrize("name", ["design.md", "contributing.md"])
def test_names_of_the_code_exist(name: str) -> None:
    code = "".join(path.read_text() for folder in ("fcaffe", "tests") for path in (ROOT / folder).rglob("*.py"))
    known = set(re.findall(r"\w+", code))
    spans = re.findall(r"`([A-Za-z_][\w.]*)`", text_of(ROOT / "docs" / name))
    assert [span for span in spans if not span.endswith(".py") and not set(re.findall(r"\w+", span)) <= known] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_flags_exist(page: Path) -> None:
    text = text_of(page)
    spans = re.findall(r"`([^`\n]+)`", text)
    calls = [
        re.search(r"(?:^|\s)fcaffe (\w.*)", line) for line in [*spans, *re.findall(r"^    .*", text, re.MULTILINE)]
    ]
    for name, *words in (shlex.split(call[1], comments=True) for call in calls if call):
        if (
            name != "help"
            and name in COMMANDS
            and not any(re.search(r"[A-Z…|]|\.\.\.|^>|^mine", word) for word in words)
        ):
            if name == "run":  # words behind the script are its own
                words = (
                    words[: 1 + next(i for i, word in enumerate(words) if not word.startswith("-"))] if words else ["x"]
                )
            if words[1:]:
                _load(name).make_context(name, words)
    known = {option for name in COMMANDS for param in _load(name).params for option in param.opts} | WITHOUT_A_COMMAND
    known |= {f"--{name.replace('_', '-')}" for name in gflags.GONE}
    flags = {flag for span in spans if span.startswith("--") for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    assert flags <= known | OF_OTHER_PROGRAMS


def test_a_machine_as_docs_firecaffe_writes_it() -> None:
    text = (ROOT / "docs" / "firecaffe.md").read_text()
    (block,) = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert machine_from(json.loads(block), "m.json").devices_per_node == 8
    (like,) = re.findall(r"^\| `like` .*: (.*) \|$", text, re.MULTILINE)
    assert {name.strip("`") for name in like.split(", ")} == set(MACHINES)
    keys = {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(Machine)} - {"name", "source"} <= keys


def test_the_folder_of_links_for_scripts_that_call_build_tools(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "from-caffe.md").read_text()
    lines = re.search(r"^    mkdir -p build/tools.*?^    done$", text, re.DOTALL | re.MULTILINE)
    assert lines
    (tmp_path / "bin").mkdir()
    programs = ["caffe", *TOOLS]
    for name in programs:
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", lines[0]], cwd=tmp_path, env=environment, check=True)
    links = {link.name: os.readlink(link) for link in (tmp_path / "build" / "tools").iterdir()}
    assert "caffe" in links
    assert all(target == str(tmp_path / "bin" / name.removesuffix(".bin")) for name, target in links.items())


def test_numbers_of_things() -> None:
    numbers = {"fourteen": 14, "six": 6}
    of_forks = {kind for kind in layer_types() if "fcaffe.forks" in registry.registered(kind).__module__}
    counts = {
        ("README.md", r"all (\w+) layer types of BVLC"): len(layer_types()) - len(of_forks),
        ("docs/changes.md", r"All (\w+) layer types of BVLC"): len(layer_types()) - len(of_forks),
        ("docs/changes.md", r"BVLC Caffe 1.0 and (\w+) of its forks"): len(of_forks),
        ("README.md", r"holds (\w+) nets"): sum(path.is_dir() for path in (ROOT / "models").iterdir()),
        ("docs/forks.md", r"(\w+) small trainings"): len(list((ROOT / "tests/golden/forks/nets").glob("[!k]*.npz"))),
    }
    for (page, pattern), count in counts.items():
        match = re.search(pattern, (ROOT / page).read_text())
        assert match, pattern
        assert int(numbers.get(match[1], match[1])) == count, match[0]


def test_every_layer_of_a_fork_is_in_the_table() -> None:
    (table,) = re.findall(r"^\| type \| fork \|.*?\n(.*?)\n\n", (ROOT / "docs/forks.md").read_text(), re.M | re.S)
    named = {name for row in table.splitlines()[1:] for name in row.split("|")[1].strip().split(", ")}
    assert named == {kind for kind in layer_types() if "fcaffe.forks" in registry.registered(kind).__module__}
