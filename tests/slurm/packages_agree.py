#!/usr/bin/env python3
"""Checks the recipes of slurm/packages: they copy every folder that CMake builds, and the dependencies of the Spack
recipe correspond to the Debian packages of slurm/install-packages.

packages_agree.py SOURCE_FOLDER
"""

import re
import sys
import types
from pathlib import Path

root = Path(sys.argv[1]).resolve()
recipes = root / "slurm/packages"
repository = recipes / "spack/spack_repo/trireme"  # Spack 1.0: a folder of the Python package spack_repo

# {Debian's package: Spack's packages, or None if Spack needs none}
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
    "hdf5-tools": None,  # this one and the following ones are only for tests
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
    """The directives of package.py, recorded by mock modules of Spack. Since Spack 1.0, spack.package exports only
    directives; the base classes belong to the builtin repository, each in the module of its build system."""

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
        exec(compile(path.read_text(), str(path), "exec"), names)  # runs the recipe of this tree
        self.package = names["Trireme"]

    @staticmethod
    def module(name, **contents):
        """Creates a mock module of that name and the packages that contain it."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:length]), types.ModuleType(".".join(parts[:length])))
        vars(sys.modules[name]).update(contents)
        return sys.modules[name]

    def depends_on(self, spec, **options):
        self.dependencies.setdefault(re.match(r"[a-z0-9-]+", spec).group(), []).append((spec, options.get("when", "")))


def check(ok, message):
    if not ok:
        sys.exit(f"FAILED: {message}")


debian, recipe = debian_packages(), Recipe()
check(debian == set(PACKAGES), f"PACKAGES and slurm/install-packages differ by {debian ^ set(PACKAGES)}")
wanted = {name for names in PACKAGES.values() if names for name in names.split()}
requested = {name for name, uses in recipe.dependencies.items() if not uses[0][1].startswith("+cuda")}
check(requested == wanted, f"Spack's recipe and install-packages differ by {requested ^ wanted}")
check("cuda" in recipe.dependencies, "the recipe has no dependency on cuda for +cuda")
for arch in "80", "90":  # NCCL does not inherit cuda_arch
    check((f"nccl cuda_arch={arch}", f"+cuda cuda_arch={arch}") in recipe.dependencies.get("nccl", []),
          f"+cuda cuda_arch={arch} does not request NCCL for the same architecture")
check(recipe.conflicts.get("cuda_arch=none") == "+cuda", "the recipe accepts +cuda without cuda_arch")
names = dict(row.split(": ") for row in re.findall(r"^  (\S+: \S+)$", (repository / "repo.yaml").read_text(), re.M))
check(names == {"namespace": repository.name, "api": "v2.0"}, f"repo.yaml has {names}")
check(recipe.package.git == f"file://{root}", f"the recipe's repository is {recipe.package.git}")

build = {*re.findall(r"^add_subdirectory\((\w+)\)", (root / "CMakeLists.txt").read_text(), re.M)}
build |= {"CMakeLists.txt", "README.md", "slurm", "configs"}  # files that the build reads or installs
dockerfile = (recipes / "Dockerfile").read_text()
copied = {name for row in re.findall(r"^COPY (?!--from)(.*) /src.*$", dockerfile, re.M) for name in row.split()}
definition = (recipes / "trireme.def").read_text()
files = {*re.findall(r"^    (\S+) /src/\S+$", definition, re.M)}
check(copied == build, f"the Dockerfile's sources differ by {copied ^ build}")
check(files == build, f"trireme.def's sources differ by {files ^ build}")
for name in build:
    check((root / name).exists(), f"{name} does not exist")

# Inside the image, both only run slurm/packages/build with arguments and options that it has.
known = {"FROM", "ARG", "COPY", "RUN", "ENV", "WORKDIR", "CMD"}
rows = [row.split()[0] for row in dockerfile.splitlines() if row and not row.startswith(("#", " "))]
check(set(rows) <= known, f"the Dockerfile has {set(rows) - known}")
for text in dockerfile, definition:
    check("slurm/packages/build /src /opt/trireme" in text, "the sources are not built by slurm/packages/build")
    check("slurm/packages/build --runtime /usr/local" in text,
          "the runtime packages are not installed by slurm/packages/build --runtime")
for argument in re.findall(r"{{ (\w+) }}", definition):
    check(re.search(rf"^    {argument}=\S", definition, re.M),
          f"trireme.def has no argument {argument} with a value, which Apptainer requires")
for argument in re.findall(r"\$\{(\w+)\}", dockerfile):
    check(re.search(rf"^ARG {argument}\b", dockerfile, re.M), f"the Dockerfile has no argument {argument}")
print("all well")
