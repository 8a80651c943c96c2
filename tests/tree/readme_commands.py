#!/usr/bin/env python3
"""Checks every command line of `trireme` in the documents: the executable has its subcommand, its options and the
config fields after --set, and the files of this tree that it names exist.

readme_commands.py SOURCE_FOLDER PATH_OF_trireme
"""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

root, trireme = Path(sys.argv[1]), sys.argv[2]


def said(*words):
    return subprocess.run([trireme, *words], capture_output=True, text=True).stdout


@functools.lru_cache(None)
def options_of(command):
    """Returns the option names of a subcommand (a tuple of words), or None if there is no such subcommand."""
    if command and subprocess.run([trireme, "help", *command], capture_output=True).returncode != 0:
        return None
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.search(r"(?ms)^Options:.*", said("help", *command)).group()))


FIELDS = set(re.findall(r"^ *([a-z]+\.[a-z_0-9]+)\b", said("check", "--fields"), re.M))


def command_lines(text):
    """Yields each line of a code block that runs trireme, with its arguments. Continued lines are joined, and comments
    are removed."""
    for block in re.findall(r"^```(?:bash|console)\n(.*?)^```", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(re.sub(r"^\$ ", "", line), comments=True)
            except ValueError:
                continue  # a quoted text spans several lines
            for i, word in enumerate(words[:-1]):
                if re.fullmatch(r"([^=]*/)?trireme", word):
                    yield line, words[i + 1 :]
                    break


def problems_of(words):
    command = ()
    while words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and options_of((*command, words[0])) is not None:
        command, words = (*command, words[0]), words[1:]
    if not command and not words[0].startswith("-"):
        return [f"no such subcommand: {words[0]}"]
    known, found = options_of(command), []
    for i, word in enumerate(words):
        if word in ("|", ">", "&&", ";", "--") or word.startswith((">", "2>")):
            break
        name, _, value = word.partition("=")
        if name.startswith("--") and name not in known:
            found.append(f"trireme {' '.join(command)} has no {name}")
        if name == "--set":
            field = (value or words[i + 1]).partition("=")[0]
            if field not in FIELDS and "..." not in field and field not in WRONG:
                found.append(f"no field {field}")
        if re.fullmatch(r"(configs|slurm|tests)/\S+", word) and not (root / word).exists():
            found.append(f"no file {word}")
    return found


WRONG = {"model.heds"}  # the README's deliberate mistake, for which it shows the message
assert len(FIELDS) > 80, FIELDS
assert (
    problems_of(["chekc", "x"]) and problems_of(["check", "--rnaks", "3"]) and problems_of(["train", "--set", "a.b=1"])
)
count, failures = 0, []
readmes = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True).stdout.split()
for readme in readmes or [str(path.relative_to(root)) for path in root.rglob("README.md") if "build" not in path.parts]:
    for line, words in command_lines((root / readme).read_text(encoding="utf-8")):
        count += 1
        failures += [f"{readme}: {problem}: {line}" for problem in problems_of(words)]
print("\n".join(failures))
print(f"{count} command lines")
sys.exit("FAILED" if failures or count < 25 else 0)
