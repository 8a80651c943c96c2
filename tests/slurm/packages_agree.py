#!/usr/bin/env python3
"""The recipes of slurm/packages against the tree: they take along every folder that CMake builds, and what they ask
Spack for is what slurm/install-packages asks Debian for.

packages_agree.py SOURCE_FOLDER
"""

import re
import sys
import types
from pathlib import Path

root = Path(sys.argv[1]).resolve()
recipes = root / "slurm/packages"
repository = recipes / "spack/spack_repo/trireme"  # Spack 1.0: a folder of the Python package spack_repo

# Debian's package -> Spack's, or the reason why there is none.
PACKAGES = {
    "build-essential": "c cxx",
    "cmake": "cmake",
    "ninja-build": "ninja",
    "pkg-config": "pkgconfig",
    "ccache": None,  # an option of Spack itself
    "openmpi-bin": "mpi",
    "libopenmpi-dev": "mpi",
    "libhdf5-dev": "hdf5",
    "libxxhash-dev": "xxhash",
    "libyaml-cpp-dev": "yaml-cpp",
    "libcli11-dev": "cli11",
    "nlohmann-json3-dev": "nlohmann-json",
    "libfmt-dev": "fmt",
    "libopenblas-dev": "openblas",
    "libsentencepiece-dev": "sentencepiece",
    "zlib1g-dev": "zlib-api",
    "libzstd-dev": "zstd",
    "libpcre2-dev": "pcre2",
    "libutf8proc-dev": "utf8proc",
    "libgtest-dev": "googletest",
    "hdf5-tools": None,  # only for tests, like the following
    "procps": None,
    "munge": None,
    "slurmctld": None,
    "slurmd": None,
    "slurm-client": None,
    "bible-kjv": None,
}


def debian_packages():
    text = (root / "slurm/install-packages").read_text()
    rows = re.search(r"^packages=\((.*?)^\)", text, re.M | re.S).group(1)
    return {name for row in rows.splitlines() for name in row.split("#")[0].split()}


class Recipe:
    """What Spack would make of package.py: its directives, by modules that only listen. Since Spack 1.0 spack.package
    has directives alone; the classes are the builtin repository's, each in the module of its build system."""

    def __init__(self):
        self.dependencies, self.conflicts = {}, {}
        ignored = lambda *arguments, **options: None
        conflicts = lambda spec, **options: self.conflicts.update({spec: options.get("when")})
        package = self.module("spack.package", version=ignored, variant=ignored, conflicts=conflicts,
                              depends_on=self.depends_on)
        package.__all__ = ["version", "variant", "conflicts", "depends_on"]
        define = staticmethod(lambda name, value: f"{name}={value}")
        self.module("spack_repo.builtin.build_systems.cmake", CMakePackage=type("CMakePackage", (), {"define": define}),
                    generator=lambda name: self.depends_on(name))
        self.module("spack_repo.builtin.build_systems.cuda",
                    CudaPackage=type("CudaPackage", (), {"cuda_arch_values": ("80", "90", "100")}))
        path = repository / "packages/trireme/package.py"
        names = {"__file__": str(path)}
        exec(compile(path.read_text(), str(path), "exec"), names)  # the recipe of this tree
        self.package = names["Trireme"]

    @staticmethod
    def module(name, **contents):
        """Makes a module of that name, and the packages that it lies in."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:length]), types.ModuleType(".".join(parts[:length])))
        vars(sys.modules[name]).update(contents)
        return sys.modules[name]

    def depends_on(self, spec, **options):
        self.dependencies.setdefault(re.match(r"[a-z0-9-]+", spec).group(), []).append((spec, options.get("when", "")))


def check(ok, words):
    if not ok:
        sys.exit(f"FAILED: {words}")


debian, recipe = debian_packages(), Recipe()
check(debian == set(PACKAGES), f"this test does not know, or install-packages lacks: {debian ^ set(PACKAGES)}")
wanted = {name for names in PACKAGES.values() if names for name in names.split()}
asked = {name for name, uses in recipe.dependencies.items() if not uses[0][1].startswith("+cuda")}
check(asked == wanted, f"Spack's recipe and install-packages differ by {asked ^ wanted}")
check("cuda" in recipe.dependencies, "no CUDA for +cuda")
for arch in "80", "90":  # by default Spack picks any GPU for NCCL
    check((f"nccl cuda_arch={arch}", f"+cuda cuda_arch={arch}") in recipe.dependencies.get("nccl", []),
          f"no NCCL for the GPUs that +cuda cuda_arch={arch} is for")
check(recipe.conflicts.get("cuda_arch=none") == "+cuda", "+cuda is taken without the GPUs that it is for")
names = dict(row.split(": ") for row in re.findall(r"^  (\S+: \S+)$", (repository / "repo.yaml").read_text(), re.M))
check(names == {"namespace": repository.name, "api": "v2.0"}, f"repo.yaml says {names}")
check(recipe.package.git == f"file://{root}", f"the recipe's repository is {recipe.package.git}")

build = {*re.findall(r"^add_subdirectory\((\w+)\)", (root / "CMakeLists.txt").read_text(), re.M)}
build |= {"CMakeLists.txt", "README.md", "slurm", "configs"}  # read, or installed
dockerfile = (recipes / "Dockerfile").read_text()
copied = {name for row in re.findall(r"^COPY (?!--from)(.*) /src.*$", dockerfile, re.M) for name in row.split()}
definition = (recipes / "trireme.def").read_text()
files = {*re.findall(r"^    (\S+) /src/\S+$", definition, re.M)}
check(copied == build, f"the Dockerfile's sources differ by {copied ^ build}")
check(files == build, f"trireme.def's sources differ by {files ^ build}")
for name in build:
    check((root / name).exists(), f"no {name}")

# Inside the image both do only what slurm/packages/build does, with the arguments and options that it has.
known = {"FROM", "ARG", "COPY", "RUN", "ENV", "WORKDIR", "CMD"}
rows = [row.split()[0] for row in dockerfile.splitlines() if row and not row.startswith(("#", " "))]
check(set(rows) <= known, f"the Dockerfile has {set(rows) - known}")
for text in dockerfile, definition:
    check("slurm/packages/build /src /opt/trireme" in text, "the sources are not built by slurm/packages/build")
    check("slurm/packages/build --runtime /usr/local" in text, "no packages for the libraries")
for argument in re.findall(r"{{ (\w+) }}", definition):
    check(re.search(rf"^    {argument}=\S", definition, re.M),
          f"trireme.def has no argument {argument} with a value, which Apptainer asks for")
for argument in re.findall(r"\$\{(\w+)\}", dockerfile):
    check(re.search(rf"^ARG {argument}\b", dockerfile, re.M), f"the Dockerfile has no argument {argument}")
print("all well")
