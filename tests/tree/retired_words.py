#!/usr/bin/env python3
"""Refuses words that the project has retired, in texts and in the names of files and tests. The table below gives the
field's term for each.

  retired_words.py SOURCE_FOLDER     exits with 0 if none is used; otherwise prints each with its file, line and
                                     replacement, and exits with 1
  retired_words.py --test            tests this script

Names in the files of runs (keys of events.jsonl, dumps and manifests, file names, environment variables) must stay
readable, so the table allows them individually.
"""
import re
import subprocess
import sys
from pathlib import Path

# (pattern, replacement, pattern of the lines that may contain it, pattern of the paths that may contain it)
WORDS = [
    (r"\bblack[ _-]?box(es)?\b|BlackBox", "flight recorder", r"fault\.black_box|`black_box[`=]|\bblack_box[,:]|\"black_box\"|TRIREME_BLACK_BOXES", None),
    (r"\bEventBook\b|\bRunBook\b|\bbooked\b|\w_book\b|\bbook_\w*", "event log, account", None, None),
    (r"\bbooks?\b", "event log", None, r"^tests/mp/readme_runs\.sh$|\.md$|^tests/golden/"),
    (r"\bFP8 codes\b|[fF]p8_?[cC]odes\b|\w_codes\b|\bkeeps_codes\b", "quantized weights", None, None),
    (r"\b\w*[cC]ulprit\w*\b", "suspect", r"[\"`]culprits?\b|\bculprits[ ,\[(]|\bwaits\.culprits|culprit \(a rank\)", None),
    (r"\bguilty\b", "faulty", None, None),
    (r"\bkPasses\b|\bkLasts\b", "kTransient, kPermanent", None, r"^lib/tune/tuning_file\.cpp$"),
    (r"\b[fF]oret(?:ell|old)\w*\b|\w*_foretold\b", "predict", None, None),
    (r"\b(?:Timeline|Stored|State)Piece\w*|\bPieceReader\b|\btimeline_piece\w*|\bstate_pieces\b", "segment, shard", None, None),
    (r"\b\w*[pP]atience\w*\b", "timeout", None, None),
    (r"\b(?:null_)?twins?\b", "null object, copy", None, None),
    (r"\b[tT]akers?\b|\bkAwaitsTakers\b", "consumer", r"awaits takers", None),
    (r"\b\w*[mM]eetings?(?:_\w*)?\b", "rendezvous, collective", None, None),
    (r"\b\w*[pP]lanted\w*\b", "injected", None, None),
    (r"\b[pP]layed\b|\bPlayed[A-Z]\w*", "simulated", None, None),
    (r"\bdrawn_\w+|\bdrawn at random\b", "randomized", None, None),
    (r"\banew\b", "again", None, None),
    (r"\bbut for\b", "except for", None, None),
    (r"\bbeside\b", "alongside, next to, in addition to", r"[\"/]beside\b", None),
    (r"\b[lL]ikewise\b", "also, the same", None, None),
    (r"\bin vain\b|\w*_in_vain\b", "without progress", None, None),
    (r"\bh_told_\b|\btold_at\b|\basks_of\b|\bkTold\b", "statistics, requests", None, None),
    (r"\b[nN]obody(?:'?s)?(?:_\w*)?\b|\w+_nobodys?(?:_\w*)?\b", "no rank, no node, none", None, None),
    (r"\b(?:[eE]very|[aA]ny|[sS]ome)body(?:'s)?\b|\b[wW]hoever\b", "all ranks, any user, the process that", None, None),
    (r"\b[lL]eft out\b|\b[lL]eaves? out\b|\bleaving out\b|\w*_left_out\b|\bleft_out_?\b|\bleave_out\b",
     "excluded, skipped, omitted", r"left_out=|\"left_out\"", None),
    (r"\b\w*[sS]trangers?(?:_\w*)?\b", "unauthenticated peer", None, None),
    (r"\bmakes? way\b|\b[rR]eliev(?:e|ed|es|ing)\b|\brelieved_\b|\w*_relieved(?:_\w*)?\b", "drain, replace with a spare",
     r'"relieve"', None),
    (r"\b(?:rides?|ridden|riding) out\b", "tolerate", None, None),
    (r"\bset aside\b", "renamed, quarantined", r'"set aside"', None),
    (r"\bours\b|\btheirs\b", "native, Hugging Face, own, the peer's",
     r"closed theirs|write theirs", None),
    (r"\b[tT](?:old|ells?)\b(?! apart)", "reported, determines", None, None),
    (r"\b[wW]hom\b", "which", None, None),
    (r"\b[aA]sked (?:for|as)\b|\bas asked\b", "requested", None, r"\.md$"),
    (r"\b[lL]ift(?:s|ed)?\b", "clear an exclusion", r'"lift"|--lift', None),
    (r"\bstands? still\b|\bk?StandsStill\b", "stalled", r'[`"]stands still[`"]|runs, stands still, ended', None),
    (r"\bmeets?\b|\bmet (?:by|for|at|when|where)\b", "rendezvous, encounter, intersect", None, None),
    (r"(?://|#) .*\bwho\b", "that, which", None, None),
    (r"\bway of (?:the )?rows\b", "transfers of rows", None, None),
    (r"\b(?:he|ranks?|nodes?|configs?|overrides) wants?\b", "needs, selects, requests", None, None),
    (r"\bis no (?:number|text|matrix|list)\b", "is not a", r"[tT]here is no ", None),
]
# The patterns also check the names of files and tests, whose words are separated by underscores.
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\(\w+, (\w+)\)", re.M)
SKIPPED = re.compile(r"\.(json|svg|csv|png|h5|gz|bin)$|(^|/)retired_words\.py$|^tests/golden/.*\.txt$")
SKIPPED_FOLDERS = {"build", "runs", "third_party", ".git", "__pycache__"}


def sources(root):
    """Returns the files of a checkout, or those of an unpacked archive that are not products of a build."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return sorted(listed.stdout.decode().rstrip("\0").split("\0"))
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")
                  if path.is_file() and not any(part.startswith("build") or part in SKIPPED_FOLDERS
                                                for part in path.relative_to(root).parts))


def problems_of_name(name, place, path):
    """Returns the retired words in a name, such as that of a file, which `place` shows in messages."""
    words = re.sub(r"[^A-Za-z0-9]+", " ", name)
    return [f"{place}: \"{match[0]}\" in the name {name}: write {instead}" for pattern, instead, _, places in WORDS
            if not (places and re.search(places, path)) for match in re.finditer(pattern, words)]


def problems_of(name, text):
    """Returns a message for every retired word in the file's name, its test names and its text."""
    found = problems_of_name(Path(name).stem, name, name)
    for match in TEST_NAME.finditer(text):
        found += problems_of_name(match[1], f"{name}:{text.count(chr(10), 0, match.start()) + 1}", name)
    for pattern, instead, allowed, places in WORDS:
        if places and re.search(places, name):
            continue
        for match in re.finditer(pattern.replace(" ", r"(?: |\s*\n\s*(?://|#|\*)?\s*)"), text):
            begin = text.rfind("\n", 0, match.start()) + 1
            end = text.find("\n", match.start())
            line = text[begin:end if end >= 0 else len(text)]
            if allowed and re.search(allowed, line):
                continue
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: \"{' '.join(match[0].split())}\": "
                         f"write {instead}")
    return found


def check(root):
    problems, num_files = [], 0
    for name in sources(root):
        path = root / name
        if SKIPPED.search(name) or not path.is_file() or path.is_symlink():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        if "\0" in text:
            continue
        num_files += 1
        problems += problems_of(name, text)
    if num_files < 400:
        problems.append(f"{root}: {num_files} files: the sources were not found")
    return problems


def test():
    assert problems_of("a.h", "// The black box\n") == ['a.h:1: "black box": write flight recorder']
    assert problems_of("a.h", "int x;\n// equal but\n  // for one\n")[0].startswith('a.h:2: "but // for"')
    assert problems_of("a.h", "BlackBox* const box = null_twin();\n") != []
    assert problems_of("a.cpp", 'setenv("TRIREME_BLACK_BOXES", f);  {"culprits", suspects}\n') == []
    assert problems_of("a.cpp", "verdict.culprits.size();\n") != []
    assert problems_of("tests/rides_out_a_flap.sh", "") != [] and problems_of("tests/books.sh", "") != []
    assert problems_of("a.cpp", "TEST_F(Agent, that_is_started_anew_reports) {\n")[0].startswith('a.cpp:1: "anew" in')
    assert problems_of("a.cpp", "// A mask tells apart two ranks, and there is no text.\n") == []
    assert problems_of("a.cpp", "// what has told\n// whom\n// is no\n// text\n") != []
    print("retired_words.py: passed")


if __name__ == "__main__":
    if sys.argv[1:] == ["--test"]:
        test()
        sys.exit(0)
    problems = check(Path(sys.argv[1]))
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(1 if problems else 0)
