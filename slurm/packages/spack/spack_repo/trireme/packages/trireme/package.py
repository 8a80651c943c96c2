"""Builds Trireme with Spack 1.0 or later from the repository that contains this recipe:

spack repo add slurm/packages/spack/spack_repo/trireme
spack install trireme@main +cuda cuda_arch=90     # builds the committed sources
spack dev-build trireme@main                      # builds the working tree

Spack has no package for cudnn-frontend, whose headers are needed to use cuDNN's attention. A
build with Spack therefore uses the built-in attention kernel.
"""

import os

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Trains GPT- and LLaMA-family language models with tensor, pipeline and data parallelism
    over MPI and NCCL."""

    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 7))

    version("main", branch="main")

    variant("tokenizer_json", default=True, description="Tokenizers of other models")

    generator("ninja")
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10.7:~mpi")
    depends_on("xxhash")
    depends_on("yaml-cpp")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("fmt")
    depends_on("openblas threads=pthreads")
    depends_on("sentencepiece")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("pcre2@10.40:", when="+tokenizer_json")
    depends_on("utf8proc", when="+tokenizer_json")
    depends_on("googletest", type="test")
    depends_on("cuda@12.4:", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:  # Spack's NCCL package requires an architecture
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
    conflicts("cuda_arch=none", when="+cuda", msg="set cuda_arch to the GPUs' architectures: 80, 90 ...")

    def cmake_args(self):
        args = [
            self.define_from_variant("TRIREME_CUDA", "cuda"),
            self.define("BUILD_TESTING", self.run_tests),
        ]
        if "+cuda" in self.spec:
            archs = self.spec.variants["cuda_arch"].value
            # 90a includes the instructions that only H100 has, such as those for FP8.
            names = [f"{'90a' if arch == '90' else arch}-real" for arch in archs]
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", names))
        return args
